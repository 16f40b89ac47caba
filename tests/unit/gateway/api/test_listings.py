"""What a tenant may call is listed once for each state of the catalog, however often it asks."""

from __future__ import annotations

from adapters.model import Adapter, dump
from adapters.registry.catalog import Catalog
from adapters.store.protocol.registry import Event
from gateway.api import openai
from gateway.api.openai import Listings
from gateway.tenants.directory import Key, Role, Tenant
from gateway.tenants.scopes import covers
from gateway.tenants.terms import Scopes


def put(catalog: Catalog, seq: int, adapter: Adapter) -> None:
    catalog.apply(Event(seq, "adapter", adapter.name, dump(adapter)))


def key_of(tenant: str, scope: tuple[str, ...] = ()) -> Key:
    return Key("k", tenant, Role.TENANT, "", 1, scopes=Scopes(adapters=scope))


async def test_it_is_made_once_until_the_catalog_changes():
    catalog, made = Catalog(), []

    def make(tenant: Tenant, key: Key) -> bytes:
        made.append((tenant.name, tenant.base_access, key.scopes.adapters))
        return b",".join(a.name.encode() for a in catalog.visible(tenant.name) if covers(key, a.name))

    listings = Listings(catalog)

    def get(tenant: str, base_access: bool = False, scope: tuple[str, ...] = ()) -> bytes:
        return listings.get(Tenant(tenant, base_access, 1), key_of(tenant, scope), make)

    put(catalog, 1, Adapter("acme/support", live=1, latest=1, shared_with=("bolt",)))
    assert [get("acme"), get("acme"), get("bolt"), get("corgi")] == [
        b"acme/support", b"acme/support", b"acme/support", b"",
    ]  # fmt: skip
    assert made == [("acme", False, ()), ("bolt", False, ()), ("corgi", False, ())]
    get("acme", base_access=True)
    assert made[-1] == ("acme", True, ())
    assert get("acme", scope=("billing",)) == b""
    assert (get("acme", scope=("sup*",)), get("acme")) == (b"acme/support", b"acme/support")
    put(catalog, 2, Adapter("acme/support", live=1, latest=1))
    assert (get("acme"), get("bolt")) == (b"acme/support", b"")
    put(catalog, 3, Adapter("bolt/sql", live=1, latest=1))
    assert get("bolt") == b"bolt/sql"
    catalog.load({})
    assert get("bolt") == b""


async def test_what_is_kept_is_bounded():
    listings, made = Listings(Catalog()), []

    def make(tenant: Tenant, key: Key) -> bytes:
        made.append((tenant, key))
        return b"x" * (openai._MOST_BYTES // 4)

    for tenant in "abcdefabcdef":
        listings.get(Tenant(tenant, False, 1), key_of(tenant), make)
        assert listings._bytes <= openai._MOST_BYTES * 5 // 4
    assert len(made) > 6
