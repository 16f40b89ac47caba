"""Versions that engines refused to load are tried again when their serving status says so.

The loader writes the serving status: it goes when the load succeeds, and else says when to try next. Whoever
calls the version meanwhile gets the reason at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from adapters.errors import LoadFailedError, PlacementError
from adapters.model import Engine, Version
from adapters.placement.loader import Loader
from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from adapters.store.protocol import Fence, Store

log = logging.getLogger(__name__)

TRIAL_SECONDS = 60.0
"""For one attempt."""
LATER_SECONDS = 10.0
"""Until the next try where this one could not even begin."""


@dataclass(slots=True)
class LoadRetries:
    store: Store
    catalog: Catalog
    residency: Residency
    loader: Loader
    now: Callable[[], int] = lambda: time.time_ns() // 1000
    """Unix microseconds."""
    # Mutable: engine name of a version → when, on the loader's clock, it may be tried again.
    _later: dict[str, float] = field(default_factory=dict)

    async def retry_due(self, fence: Fence) -> None:
        """One after the other. Raises FencedError, StoreUnavailableError."""
        for name, serving_status in list(self.catalog.serving_statuses.items()):
            version = self.catalog.by_engine_name.get(name)
            if (
                version is None
                or serving_status.state != "failed"
                or not 0 < serving_status.retry <= self.now()
            ):
                continue
            if self.loader.clock() < self._later.get(name, 0.0):
                continue
            self._later[name] = self.loader.clock() + LATER_SECONDS
            await self._retry(version, fence)
        self._later = {name: at for name, at in self._later.items() if name in self.catalog.serving_statuses}

    async def _retry(self, version: Version, fence: Fence) -> None:
        await self.store.commit((), fence=fence)  # loads are not fenced: so ask before each
        deadline = self.loader.clock() + TRIAL_SECONDS
        try:
            engine = await self.loader.ensure_resident(
                version, self._choice(version), deadline=deadline, again=True
            )
        except LoadFailedError as error:
            log.warning("%s still cannot be loaded: %s", version.id, error)
        except PlacementError as error:  # no engine, no slot, or a worse serving status by now
            log.info("%s could not be tried again: %s", version.id, error)
        else:
            self.loader.loads_since(version, engine)  # no request has caused it
            log.warning("%s could be loaded again, on %s", version.id, engine)

    def _choice(self, version: Version) -> Callable[[Collection[str]], Engine | None]:
        """The engine with the most room, of those that could take it."""

        def choose(failed: Collection[str], /) -> Engine | None:
            able = [
                engine
                for engine in self.catalog.fleet(version.base_model)
                if engine.takes_adapters
                and engine.max_rank >= version.rank
                and engine.name not in failed
                and self.loader.usable(engine.name)
            ]
            return min(able, key=self._crowding, default=None)

        return choose

    def _crowding(self, engine: Engine) -> tuple[int, str]:
        return len(self.residency.slots(engine.name)) - engine.slots, engine.name
