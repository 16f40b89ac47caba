"""Rests engines into whose weights a version is merged while that version is not live.

A version that is no longer live, neither as such nor as a canary, gets no calls by its adapter's name. Its
engine then takes no new requests, as after a drain, and takes them again once the version is live again:
after a rollback, or if it was registered ahead of the promotion. What an operator has drained or cordoned is
left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from adapters.errors import ConflictError
from adapters.model import Drain, Engine, dump
from adapters.registry.catalog import Catalog
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.registry import AuditNote, Change, RegistryStore


def due(engine: Engine, *, live: bool) -> Engine:
    """The engine as it should be. `live`: whether callers of its adapter's name may get what it serves."""
    if live and engine.rests:
        return replace(engine, state="active", drain=None)
    if not live and engine.takes_adapters:  # neither cordoned nor being drained
        return replace(engine, state="draining", drain=Drain(until=0, moved=True))
    return engine


def is_live(catalog: Catalog, version_id: str) -> bool:
    version = catalog.versions.get(version_id)
    if version is None or version.retired is not None:
        return False
    adapter = catalog.adapters.get(version.adapter)
    return adapter is not None and version.number in (adapter.live, adapter.canary)


@dataclass(slots=True)
class MergedEngines:
    store: RegistryStore
    catalog: Catalog

    async def update(self, fence: Fence) -> None:
        """Raises FencedError, StoreUnavailableError."""
        for engine in [e for e in self.catalog.engines.values() if e.serves]:
            new = due(engine, live=is_live(self.catalog, engine.serves))
            if new is engine:
                continue
            details = {"serves": engine.serves, "state": [engine.state, new.state]}
            note = AuditNote("reconciler", "engine.state", engine.name, details=details)
            change = Change("engine", engine.name, dump(new), expect=dump(engine))
            try:
                await self.store.commit([change], audit=note, fence=fence)
            except ConflictError:  # changed concurrently: again at the next pass
                continue
