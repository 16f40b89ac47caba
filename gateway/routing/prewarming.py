"""Loads a version before requests are routed to it, so that a switch causes no cold start.

It loads on one engine after another, through the loader and with the priority of an ordinary request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field

from adapters.errors import AdaptersError, LoadFailedError, NoEngineError, PlacementError, QuarantinedError
from adapters.model import Engine, Version
from adapters.placement.loader import Loader
from adapters.placement.scheduling.filters import PRIVATE
from adapters.placement.scheduling.view import Action
from adapters.registry.catalog import Catalog, Target
from adapters.wording import counted
from gateway.routing.fleets import Fleets
from gateway.routing.router import Router

log = logging.getLogger(__name__)

TOTAL_SECONDS = 60.0
"""Time after which no further load is started."""


@dataclass(frozen=True, slots=True)
class Prewarmed:
    engines: tuple[str, ...]
    """Where the version is resident now: at least one engine."""
    short: str = ""
    """Why it is resident on fewer engines than requested; empty: it is not."""


@dataclass(slots=True)
class Prewarmer:
    catalog: Catalog
    fleets: Fleets
    router: Router
    loader: Loader
    timeout: float
    """Seconds that a load may wait for a slot."""
    _later: set[asyncio.Task[None]] = field(default_factory=set)

    async def warm(self, version: Version, like: Version | None, share: int = 100) -> Prewarmed:
        """Make `version` resident on `share` percent of the number of engines that hold `like`, at least on
        one, where it costs least. Earlier load failures of the version are retried.

        Raises NoEngineError, LoadFailedError or PlacementError (no slot in time) if it ends up on no engine;
        also QuarantinedError, StoreUnavailableError."""
        likes = self._holders(like) if like else []
        target = max(1, -(-len(likes) * share // 100))
        end = self.loader.clock() + TOTAL_SECONDS
        tried, loaded = set[str](), set[str]()
        trouble: PlacementError | None = None
        while True:
            have = loaded.union(self._holders(version))
            engines, reasons = self._open(version, likes, tried | have)
            if len(have) >= target or not engines or self.loader.clock() > end:
                break
            tried.add(engines[0].name)
            try:
                loaded.add(await self._load(version, engines, have))
            except QuarantinedError:
                raise
            except LoadFailedError as error:  # the loader has already tried a second engine
                trouble = error
                break
            except PlacementError as error:
                trouble = trouble or error
        if not have:
            raise trouble or NoEngineError(f"No engine can hold {version.id}: {reasons}.")
        short = ""
        if len(have) < target:
            short = (
                f"{version.id} is resident on {len(have)} of {counted(target, 'engine')}: "
                f"{trouble or reasons}"
            )
        return Prewarmed(tuple(sorted(have)), short)

    def warm_later(self, version: Version, like: Version | None) -> None:
        """Warm in the background. Failures are only logged, since the first request will report them."""

        async def work() -> None:
            try:
                await self.warm(version, like)
            except AdaptersError as error:
                log.warning("Prewarming of %s failed: %s", version.id, error)

        task = asyncio.create_task(work(), name=f"warm {version.id}")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def close(self) -> None:
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)

    def _holders(self, version: Version) -> list[str]:
        return [state.engine.name for state in self.fleets.holders(version)]

    def _open(
        self, version: Version, likes: Collection[str], passed: Collection[str]
    ) -> tuple[list[Engine], str]:
        """Engines that can load the version, best first, without those in `passed`; and the reasons of
        all."""
        scores = self.router.scores(
            Target(version, version.base_model), self.loader.requires(version.tenant), even_full=True
        )
        could = sorted(
            (s.cost, s.engine not in likes, s.engine)
            for s in scores
            if s.cost is not None and s.action is not Action.SERVE and s.engine not in passed
        )
        engines = (self.catalog.engines.get(name) for _, _, name in could)
        reasons = (
            "; ".join(f"{s.engine}: {s.reason}" for s in scores if not s.reason.startswith(PRIVATE))
            or "none is registered"
        )
        return [engine for engine in engines if engine], reasons

    async def _load(self, version: Version, engines: list[Engine], have: Collection[str]) -> str:
        """Load the version on the first engine that accepts it, other than those that `have` it. Returns the
        engine; it may be one of the latter if no slot became free elsewhere."""

        def choose(failed: Collection[str], /) -> Engine | None:
            return next((engine for engine in engines if engine.name not in failed), None)

        deadline = self.loader.clock() + self.timeout
        engine = await self.loader.ensure_resident(version, choose, deadline=deadline, avoid=have, again=True)
        self.loader.loads_since(version, engine)  # resets the count: no request caused this load
        return engine
