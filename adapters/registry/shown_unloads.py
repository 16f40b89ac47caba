"""Records what an engine's process has shown its unloads to do, see `adapters.model.Unloads`.

No experiment is made: one would fill the engine's memory, and each load stops the requests there. What an
engine does shows with the first unload that matters.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace

from adapters.errors import ConflictError, StoreUnavailableError
from adapters.model import Engine, Unloads, dump
from adapters.registry.catalog import Catalog
from adapters.store.protocol.registry import Change, RegistryStore

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ShownUnloads:
    store: RegistryStore
    catalog: Catalog

    async def learned(self, engine: Engine, unloads: Unloads) -> None:
        """`engine`, as it was registered when it showed that. If the store is away, the next unload tells."""
        known = self.catalog.engines.get(engine.name)
        if known is None or (known.epoch, known.started) != (engine.epoch, engine.started):
            return
        if unloads == known.unloads or (unloads, known.unloads) == ("removes", "refuses"):
            return
        change = Change("engine", known.name, dump(replace(known, unloads=unloads)), expect=dump(known))
        with contextlib.suppress(ConflictError, StoreUnavailableError):
            await self.store.commit([change])
            log.info("Engine %s: %s", known.name, _SHOWN[unloads], extra={"engine": known.name})


_SHOWN: dict[Unloads, str] = {
    "forgets": "an unload only forgets an adapter's name",
    "removes": "an unload removes an adapter from its memory",
    "refuses": "an unload removes an adapter from its memory, and is refused if it is there no longer",
}
