"""What a tenant may call is listed once for each state of the catalog, however often it asks."""

from __future__ import annotations

from typing import Any

import orjson

from adapters.model import Adapter, BaseModel, Engine, dump
from adapters.registry.catalog import Catalog
from adapters.store.protocol.registry import Event
from gateway.api.model_cards import ModelCards
from gateway.tenants.directory import Key, Role, Tenant
from gateway.tenants.terms import Scopes


def put(catalog: Catalog, kind: str, id_: str, document: Any) -> None:
    catalog.apply(Event(1, kind, id_, dump(document)))


def put_adapter(catalog: Catalog, name: str, **fields: Any) -> None:
    put(catalog, "adapter", name, Adapter(name, live=1, latest=1, **fields))


def get(cards: ModelCards, tenant: str, *, base_access: bool = False, scope: tuple[str, ...] = ()) -> bytes:
    key = Key("k", tenant, Role.TENANT, "", 1, scopes=Scopes(adapters=scope))
    return cards.listing(Tenant(tenant, base_access, 1), key)


def ids(listing: bytes) -> list[str]:
    return [card["id"] for card in orjson.loads(listing)["data"]]


def test_it_is_made_once_until_the_catalog_changes():
    catalog = Catalog()
    cards = ModelCards(catalog)
    put_adapter(catalog, "acme/support", shared_with=("bolt",))
    put(catalog, "base", "base", BaseModel("base"))
    first = get(cards, "acme")
    assert ids(first) == ["acme/support", "support"]
    assert get(cards, "acme") is first
    assert (ids(get(cards, "bolt")), ids(get(cards, "corgi"))) == (["acme/support"], [])
    assert ids(get(cards, "acme", base_access=True)) == ["acme/support", "base", "support"]
    assert ids(get(cards, "acme", scope=("billing",))) == []
    assert get(cards, "acme") is first
    put_adapter(catalog, "acme/support")
    assert get(cards, "acme") is not first
    assert ids(get(cards, "bolt")) == []
    catalog.load({})
    assert ids(get(cards, "acme")) == []


def test_an_engine_that_tells_its_context_changes_the_cards():
    catalog = Catalog()
    cards = ModelCards(catalog)
    put(catalog, "base", "base", BaseModel("base"))
    for length in (0, 4096):
        put(catalog, "engine", "a", Engine("a", "http://a", "base", "h100", 2, 8, max_model_len=length))
        [card] = orjson.loads(get(cards, "acme", base_access=True))["data"]
        assert card["max_model_len"] == (length or None)


def test_a_base_model_is_not_listed_under_a_name_that_calls_an_adapter():
    catalog = Catalog()
    put(catalog, "base", "base", BaseModel("base"))
    put_adapter(catalog, "acme/base")
    assert ids(get(ModelCards(catalog), "acme", base_access=True)) == ["acme/base", "base"]
