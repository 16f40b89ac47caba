"""What Redis says against what engines report, mended by one worker at a time.

An engine that restarts comes back empty. The worker that leads asks every engine what it has loaded, and
loads again what it should have, most recently used first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from adapters.catalog import Catalog
from adapters.engine_control import EngineControl
from adapters.errors import AdaptersError, EngineError, StoreUnavailableError
from adapters.loader import Loader
from adapters.model import Engine, SlotState
from adapters.residency import Residency
from adapters.store import Store

log = logging.getLogger(__name__)

ROLE = "reconciler"
LEASE_MS = 5_000
RELOAD_SECONDS = 30.0


@dataclass(slots=True)
class Reconciler:
    store: Store
    catalog: Catalog
    residency: Residency
    control: EngineControl
    loader: Loader
    owner: str
    interval: float
    probe_timeout: float

    async def run(self) -> None:
        """For ever; cancel to stop."""
        try:
            while True:
                try:
                    if await self.store.lead(ROLE, self.owner, LEASE_MS):
                        await self._sweep()
                        engines = list(self.catalog.engines.values())
                        await asyncio.gather(*(self._mend(engine) for engine in engines))
                except StoreUnavailableError:
                    pass  # the follower says so, once
                await asyncio.sleep(self.interval)
        finally:
            with contextlib.suppress(StoreUnavailableError):  # then the lease lapses by itself
                await self.store.resign(ROLE, self.owner)

    async def _sweep(self) -> None:
        """Placements on engines that are no more: whoever removed one may have died before it was done."""
        for name in self.residency.engines() - self.catalog.engines.keys():
            await self.store.unplace(name)

    async def _mend(self, engine: Engine) -> None:
        slots = self.residency.slots(engine.name)  # before the look: what comes in between is not missing
        try:
            loaded = (await self.control.serving(engine, timeout=self.probe_timeout)).loras
        except EngineError:
            return  # down: there is nothing to mend until it is back
        missing = {v for v, state in slots.items() if state is not SlotState.LOADING} - loaded
        if not missing:
            return
        recent = await self.store.recency(engine.name)
        for name in sorted(missing & recent.keys(), key=recent.__getitem__):  # what is still assigned
            await self._reload(engine, name)

    async def _reload(self, engine: Engine, name: str) -> None:
        version = self.catalog.by_engine_name.get(name)
        if version is None:
            await self.store.unplace(engine.name, name)  # removed from the registry meanwhile
            return
        if not self.residency.holds(engine.name, name):
            return
        deadline = self.loader.clock() + RELOAD_SECONDS
        try:
            await self.loader.ensure_resident(
                version, lambda failed: None if failed else engine, deadline=deadline, reload_on=engine.name
            )
            self.loader.loads_since(version, engine.name)  # no request has caused it
            log.warning("%s had lost %s: loaded again", engine.name, version.id)
        except StoreUnavailableError:
            raise
        except AdaptersError as error:
            log.error("%s lost %s, and it cannot be loaded again: %s", engine.name, version.id, error)
