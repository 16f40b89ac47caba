"""Retries versions that engines refused to load, when their serving status says so.

The loader writes the serving status: it clears it when a load succeeds, and otherwise sets the time of the
next attempt. Callers of the version meanwhile get the reason immediately.
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
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.registry import RegistryStore

log = logging.getLogger(__name__)

TRIAL_SECONDS = 60.0
"""Seconds allowed for one attempt."""
LATER_SECONDS = 10.0
"""Seconds until the next attempt if this one could not start."""


@dataclass(slots=True)
class LoadRetries:
    store: RegistryStore
    catalog: Catalog
    residency: Residency
    loader: Loader
    now: Callable[[], int] = lambda: time.time_ns() // 1000
    """Unix microseconds."""
    # Mutable: engine name of a version → earliest time of the next attempt, on the loader's clock.
    _later: dict[str, float] = field(default_factory=dict)

    async def retry_due(self, fence: Fence) -> None:
        """Retry the versions that are due, one at a time. Raises FencedError, StoreUnavailableError."""
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
        self._later = {
            name: due for name, due in self._later.items() if name in self.catalog.serving_statuses
        }

    async def _retry(self, version: Version, fence: Fence) -> None:
        await self.store.commit((), fence=fence)  # loads are not fenced, so check the fence before each
        deadline = self.loader.clock() + TRIAL_SECONDS
        try:
            engine = await self.loader.ensure_resident(
                version, self._choice(version), deadline=deadline, again=True
            )
        except LoadFailedError as error:
            log.warning("Retry of %s failed: %s", version.id, error)
        except PlacementError as error:  # no engine, no slot, or quarantined meanwhile
            log.info("Retry of %s postponed: %s", version.id, error)
        else:
            self.loader.loads_since(version, engine)  # no request is charged for it
            log.warning("Engine %s: retry of %s succeeded", engine, version.id)

    def _choice(self, version: Version) -> Callable[[Collection[str]], Engine | None]:
        """Prefer the engine with the most free slots among those that can hold the version."""

        def choose(failed: Collection[str], /) -> Engine | None:
            able = [
                engine
                for engine in self.catalog.fleet(version.base_model)
                if engine.takes_adapters
                and not engine.serves
                and engine.name not in failed
                and self.loader.may_hold(engine, version)
                and self.loader.usable(engine.name)
            ]
            return min(able, key=self._crowding, default=None)

        return choose

    def _crowding(self, engine: Engine) -> tuple[int, str]:
        return len(self.residency.slots(engine.name)) - engine.slots, engine.name
