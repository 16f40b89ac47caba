"""Schedule, and see that the version is there: from a target to a lease on an engine."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace

from adapters.catalog import Catalog, Target
from adapters.errors import LoadFailedError, NoEngineError, PlacementError, QuarantinedError
from adapters.loader import Loader
from adapters.model import Engine
from adapters.placement import Candidate, Decision, decide
from gateway.errors import FlorinError
from gateway.routing.pool import Lease, Pool
from gateway.routing.upstream import GoElsewhere

MAX_ATTEMPTS = 3
"""Attempts on which engines may have worked and failed. More, and a request that kills engines would take
the whole fleet with it."""
MAX_DETOURS = 20
"""Attempts that cost engines nothing: unknown model, busy, refused connections."""
WAIT_SECONDS = 0.25
RETRY_SECONDS = 0.05


@dataclass(slots=True)
class Journey:
    """One request's way through the fleet: mutable, one for each request."""

    target: Target
    deadline: float
    attempts: int = 0
    failures: int = 0
    failed_on: set[str] = field(default_factory=set)
    reload_on: str | None = None
    loads: int = 0
    """Adapter loads that the attempt to come has caused."""


class Router:
    def __init__(
        self,
        catalog: Catalog,
        pool: Pool,
        loader: Loader,
        changed: Callable[[float], Awaitable[None]],
        *,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._pool = pool
        self._loader = loader
        self._changed = changed
        self._timeout = timeout
        self._clock = clock

    def journey(self, target: Target) -> Journey:
        return Journey(target, self._clock() + self._timeout)

    async def place(self, journey: Journey) -> Lease:
        """A lease on an engine that holds the target. Raises FlorinError, QuarantinedError, LoadFailedError,
        StoreUnavailableError."""
        version = journey.target.version
        while True:
            if version is not None and self._catalog.verdicts:  # wherever it is resident
                self._loader.verdicts.check(version, quarantine_only=True)
            engine = self._resident(journey) or await self._make_resident(journey)
            if engine in journey.failed_on:  # nothing better is left: give it a moment
                await self._changed(RETRY_SECONDS * journey.attempts)
            lease = self._pool.acquire(engine, journey.target.version) if engine else None
            if lease is not None:
                journey.attempts += 1
                journey.loads = self._loader.loads_since(journey.target.version, lease.state.engine.name)
                return lease
            if self._clock() > journey.deadline:
                raise self._too_late(journey)
            await self._changed(WAIT_SECONDS)

    def learn(self, journey: Journey, lease: Lease, trouble: GoElsewhere) -> None:
        """Remember what an attempt met, so that the next goes elsewhere; FlorinError when it was the last."""
        engine = lease.state.engine.name
        if trouble.suspect:
            lease.doubt(str(trouble))
        # (The base model cannot be loaded: who does not know it is simply no use.)
        if trouble.unknown_model and journey.target.version and engine not in journey.failed_on:
            journey.reload_on = engine
        else:
            journey.failed_on.add(engine)
        journey.failures += trouble.counts
        if journey.failures >= MAX_ATTEMPTS:
            raise FlorinError(
                "engine_failed",
                f"{journey.attempts} attempts failed, the last with: {trouble.reason}.",
                retry_after=1,
            )
        if journey.attempts >= MAX_DETOURS or self._clock() > journey.deadline:
            raise self._too_late(journey)

    def explain(self, target: Target) -> Decision:
        """The decision as it would fall now, with every engine's score."""
        return decide(self._candidates(target, ()), rank=target.version.rank if target.version else None)

    # -- steps

    def _resident(self, journey: Journey) -> str | None:
        """An engine that holds the target now."""
        version = journey.target.version
        if journey.reload_on:
            return None
        if version is not None:
            holders = self._pool.holders(version, journey.failed_on)
            if len(holders) == 1:
                return holders[0].engine
            return decide(holders, rank=version.rank).engine if holders else None
        return decide(self._candidates(journey.target, journey.failed_on), rank=None).engine

    async def _make_resident(self, journey: Journey) -> str | None:
        """Load it where that costs least; None when that must wait."""
        version = journey.target.version
        if version is None:
            self._check_hope(journey)
            return None

        def choose(failed: Collection[str], /) -> Engine | None:
            candidates = self._candidates(journey.target, journey.failed_on)
            name = decide([c for c in candidates if c.engine not in failed], rank=version.rank).engine
            return self._catalog.engines.get(name) if name else None

        reload_on, journey.reload_on = journey.reload_on, None
        try:
            return await self._loader.ensure_resident(
                version, choose, deadline=journey.deadline, reload_on=reload_on, avoid=journey.failed_on
            )
        except NoEngineError:
            self._check_hope(journey)
            return None
        except (LoadFailedError, QuarantinedError):
            raise
        except PlacementError as error:
            if self._clock() > journey.deadline:
                raise self._too_late(journey) from error
            raise

    def _candidates(self, target: Target, failed: Collection[str]) -> list[Candidate]:
        fleet = self._pool.fleet(target.base_model, target.version, set(failed))
        verifier = self._loader.verifier
        if verifier is None or not self._catalog.verdicts:
            return fleet
        shunned = {e.name for e in self._catalog.fleet(target.base_model) if verifier.shuns(e)}
        return [replace(c, suspect=c.engine in shunned) for c in fleet]

    def _check_hope(self, journey: Journey) -> None:
        """Wait only for what can come: an engine that is down may return, one that is too small will not
        grow."""
        scores = self.explain(journey.target).scores
        if not any(s.cost is not None or s.reason == "unhealthy" for s in scores):
            reasons = "; ".join(f"{s.engine}: {s.reason}" for s in scores) or "none is registered"
            raise FlorinError(
                "no_engine", f"No engine can serve {journey.target.label}: {reasons}.", retry_after=5
            )

    def _too_late(self, journey: Journey) -> FlorinError:
        return FlorinError(
            "placement_timeout",
            f"No engine began to answer for {journey.target.label} within {self._timeout:g} s.",
            retry_after=1,
        )
