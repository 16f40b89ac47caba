"""What /v1/models lists: the cards of a vLLM server, with what a customer may know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from adapters.model import Adapter, Version
from adapters.registry.catalog import Catalog
from gateway.tenants.directory import Key, Tenant
from gateway.tenants.scopes import covers

Json = dict[str, Any]

_MOST_BYTES = 16 * 1024 * 1024


class ModelCards:
    """The model cards of one worker's catalog. Rendering ten thousand adapters blocks the event loop for
    100 ms, so listings are cached per tenant and scope."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        # Mutable: listings of one state of the catalog, and their size.
        self._state = (-1, -1)
        self._bytes = 0
        self._kept: dict[tuple[str, bool, tuple[str, ...]], bytes] = {}

    def listing(self, tenant: Tenant, key: Key) -> bytes:
        """The models that this key may call. Full names come first; each of the tenant's own adapters then
        comes again by the short name that its callers use."""
        state = self._catalog.generation, self._catalog.engine_changes
        if self._state != state or self._bytes > _MOST_BYTES:
            self._kept, self._bytes, self._state = {}, 0, state
        what = (tenant.name, tenant.base_access, key.scopes.adapters)
        kept = self._kept.get(what)
        if kept is None:
            kept = self._kept[what] = listing(self._cards(tenant, key))
            self._bytes += len(kept)
        return kept

    def base(self, model: str) -> Json:
        return self._base(model, self._contexts())

    def adapter(self, model: str, version: Version) -> Json:
        """`model`: the name by which it is asked for."""
        return self._adapter(model, version, self._contexts())

    def _cards(self, tenant: Tenant, key: Key) -> list[Json]:
        catalog, contexts = self._catalog, self._contexts()
        adapters = [a for a in catalog.visible(tenant.name) if a.live is not None and covers(key, a.name)]
        cards = [self._adapter(a.name, self._live(a), contexts) for a in adapters]
        short = [
            card | {"id": card["id"].partition("/")[2]} for card in cards if card["owned_by"] == tenant.name
        ]
        if tenant.base_access and covers(key, ""):
            bases = (
                base for base in sorted(catalog.bases) if f"{tenant.name}/{base}" not in catalog.adapters
            )
            cards += [self._base(base, contexts) for base in bases]
        return cards + short

    def _live(self, adapter: Adapter) -> Version | None:
        return self._catalog.versions.get(f"{adapter.name}@v{adapter.live}")

    def _contexts(self) -> Mapping[str, int]:
        """Base model → the context length that any of its engines has room for, if that is known."""
        shortest: dict[str, int] = {}
        for engine in self._catalog.engines.values():
            if engine.max_model_len:
                known = shortest.get(engine.base_model, engine.max_model_len)
                shortest[engine.base_model] = min(known, engine.max_model_len)
        return shortest

    def _base(self, model: str, contexts: Mapping[str, int]) -> Json:
        return self._card(model, "florin", 0, model, contexts) | {"parent": None}

    def _adapter(self, model: str, version: Version | None, contexts: Mapping[str, int]) -> Json:
        if version is None:
            return self._card(model, model.partition("/")[0], 0, "", contexts)
        return self._card(model, version.tenant, version.created, version.base_model, contexts)

    def _card(self, model: str, owner: str, created: int, base: str, contexts: Mapping[str, int]) -> Json:
        """`root`: what the base model is called where its tokenizer can be fetched, if engines told that, and
        no path of theirs."""
        known = self._catalog.bases.get(base)
        names = (base, *known.public_aliases) if known else (base,)
        return {
            "id": model,
            "object": "model",
            "created": created // 1_000_000,
            "owned_by": owner,
            "root": next((name for name in names if "/" in name), base) or None,
            "parent": base or None,
            "max_model_len": contexts.get(base),
        }


def listing(cards: list[Json]) -> bytes:
    return orjson.dumps({"object": "list", "data": cards})
