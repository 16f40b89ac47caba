"""`Loader.ensure_resident`: one load per version, however many requests and workers wait for it.

Within a worker, all requests for a version share one load. Across workers, the claim in the store decides who
loads; the others see the version as `loading` and wait for its event. If a loading worker dies, its claim
lapses.

A load succeeds only once the version is verified. A failed verification is recorded as the version's serving
status, and every worker then refuses the version immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from adapters.errors import (
    LoadFailedError,
    NoEngineError,
    PlacementError,
    StoreUnavailableError,
)
from adapters.model import Engine, Version
from adapters.placement.engine_client import EngineClient
from adapters.placement.load_steps import LoadObserver, LoadResult, LoadSteps
from adapters.placement.residency import Residency
from adapters.placement.verification import Verifier
from adapters.registry.catalog import Catalog
from adapters.registry.serving_status import SURE, ServingStatuses
from adapters.store.protocol import ClaimResult, Store

log = logging.getLogger(__name__)

CLAIM_MS = 10_000
"""After this, another worker may take over a load's claim. A slower load is then claimed and repeated, which
is harmless: the engine reports that it already has the version."""
LONGEST_CLAIM_MS = 120_000
"""Longest claim after a load that was too slow. Each claim is twice as long as the last, because an engine
with a long queue may need more than CLAIM_MS for the verification probe every time."""
RETRY_SECONDS = 0.1
"""Seconds between claims while every slot is in use. Other workers flush their leases at about this
interval."""
PATIENCE_SECONDS = 2.0
"""How long to wait for a slot before falling back to the engines in `avoid`."""
FIRST_BACKOFF, MAX_BACKOFF = 1.0, 30.0
"""Seconds during which a failed load is answered from memory; doubles with each failure."""
MAX_REFUSALS = 2
"""One refusal may be the engine's fault; a second engine's refusal means that the adapter is at fault."""


class Choose(Protocol):
    """Returns the engine to load on, given the engines that failed so far, or None if none is left."""

    def __call__(self, failed: Collection[str], /) -> Engine | None: ...


@dataclass(slots=True)
class SingleFlightLoad:
    """One version's load, shared by every request in this worker that waits for it."""

    task: asyncio.Task[str]
    deadline: float
    waiters: int = 0


@dataclass(slots=True)
class RecentFailure:
    reason: str
    until: float
    backoff: float
    count: int = 1
    """Consecutive failures in this worker."""


@dataclass(slots=True)
class Loader:
    """Makes versions resident, with one load per version however many requests and workers want it.

    Invariants: within this worker a version has at most one load in flight, which outlives requests that give
    up as long as another waits; across workers the claim in the store decides who loads; `ensure_resident`
    returns an engine only after the load was verified and confirmed, or if the store says it is resident.

    Routing, prewarming and the reconciler call `ensure_resident`. The gateway calls `close`
    once, at shutdown. All calls are made on one event loop.
    """

    store: Store
    catalog: Catalog
    residency: Residency
    control: EngineClient
    observer: LoadObserver
    owner: str
    """This worker's name in claims."""
    usable: Callable[[str], bool]
    """Whether the named engine takes requests now."""
    changed: Callable[[float], Awaitable[None]]
    """Returns at the next residency change, or after that many seconds."""
    before_claim: Callable[[], Awaitable[None]]
    """Flushes this worker's leases, so that its own claims never evict versions in use by its own
    requests."""
    clock: Callable[[], float] = time.monotonic
    serving_statuses: ServingStatuses = field(init=False)
    steps: LoadSteps = field(init=False)
    _loads_in_flight: dict[str, SingleFlightLoad] = field(default_factory=dict)
    _failures: dict[str, RecentFailure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.serving_statuses = ServingStatuses(self.store, self.catalog)
        self.steps = LoadSteps(
            self.store, self.catalog, self.residency, self.control, self.observer, self.owner, self.clock
        )

    @property
    def verifier(self) -> Verifier | None:
        return self.steps.verifier

    @verifier.setter
    def verifier(self, verifier: Verifier) -> None:
        self.steps.verifier = verifier

    async def ensure_resident(
        self,
        version: Version,
        choose: Choose,
        *,
        deadline: float,
        reload_on: str | None = None,
        avoid: Collection[str] = (),
        again: bool = False,
    ) -> str:
        """Return the name of an engine that holds `version`, loading it first if necessary. `deadline` is on
        the loader's clock.

        `reload_on` names an engine that is assigned the version but reported that it does not know it.
        `avoid` names engines that may hold the version but failed the request; another load is preferred over
        them. `again` retries a version whose status is `failed`; success clears the status. Raises
        QuarantinedError, NoEngineError, LoadFailedError, PlacementError (deadline exceeded),
        StoreUnavailableError.
        """
        name = version.engine_name
        self.serving_statuses.check(version, quarantine_only=again)
        failure = self._failures.get(name)
        if failure and not again and self.clock() < failure.until:
            raise LoadFailedError(failure.reason)
        load_in_flight = self._loads_in_flight.get(name)
        if load_in_flight is None or load_in_flight.task.done():
            load = self._load(version, choose, reload_on, frozenset(avoid), again=again)
            task = asyncio.create_task(load, name=f"load {version.id}")
            load_in_flight = self._loads_in_flight[name] = SingleFlightLoad(task, deadline)
            task.add_done_callback(lambda t: self._load_done(name, t))
        load_in_flight.deadline = max(load_in_flight.deadline, deadline)
        load_in_flight.waiters += 1
        try:
            async with asyncio.timeout(max(0.0, deadline - self.clock())):
                return await asyncio.shield(load_in_flight.task)
        except TimeoutError:
            raise PlacementError(f"no slot became free for {version.id} in time") from None
        finally:
            load_in_flight.waiters -= 1

    def loads_since(self, version: Version | None, engine: str) -> int:
        """Return and reset the number of loads of `version` on `engine`. Of all requests that waited for a
        load, the first to ask is charged for it."""
        if version is None or not self.steps.loads:
            return 0
        return self.steps.loads.pop((version.engine_name, engine), 0)

    async def close(self) -> None:
        """Cancel the loads in flight. Their claims lapse."""
        tasks = [load_in_flight.task for load_in_flight in self._loads_in_flight.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _load_done(self, name: str, task: asyncio.Task[str]) -> None:
        load_in_flight = self._loads_in_flight.get(name)
        if load_in_flight is not None and load_in_flight.task is task:
            del self._loads_in_flight[name]
        if task.cancelled():
            return
        if task.exception() is None:  # reading it also avoids asyncio's "never retrieved" warning
            self._failures.pop(name, None)

    async def _load(
        self,
        version: Version,
        choose: Choose,
        reload_on: str | None,
        avoid: frozenset[str],
        *,
        again: bool,
    ) -> str:
        """Run one load and record its outcome for the version."""
        refusals = list[LoadFailedError]()
        try:
            engine = await self._claim_and_load(version, choose, reload_on, avoid, refusals, again=again)
        except LoadFailedError as error:
            if refusals:  # otherwise another worker recorded the failure
                await self._failed(version, error)
            raise
        if version.engine_name in self.catalog.serving_statuses:
            with contextlib.suppress(StoreUnavailableError):  # the reconciler's next attempt clears it
                await self.serving_statuses.recovered(version)
        return engine

    async def _failed(self, version: Version, error: LoadFailedError) -> None:
        """Remember the failure for a while; after SURE consecutive failures, set the version's serving
        status."""
        last = self._failures.get(version.engine_name)
        backoff = min(MAX_BACKOFF, last.backoff * 2) if last else FIRST_BACKOFF
        count = last.count + 1 if last else 1
        until = self.clock() + backoff
        self._failures[version.engine_name] = RecentFailure(str(error), until, backoff, count)
        if count >= SURE or version.engine_name in self.catalog.serving_statuses:
            with contextlib.suppress(StoreUnavailableError):  # the next failure records it
                await self.serving_statuses.failed(version, error, count)

    async def _claim_and_load(
        self,
        version: Version,
        choose: Choose,
        reload_on: str | None,
        avoid: frozenset[str],
        refusals: list[LoadFailedError],
        *,
        again: bool,
    ) -> str:
        name, failed = version.engine_name, self._suspects(version)
        patience = self.clock() + PATIENCE_SECONDS
        ttl = CLAIM_MS
        lapsed: Engine | None = None
        """Engine on which the claim lapsed during the load. It already has the version, so the next load is
        quick."""
        while True:
            self.serving_statuses.check(
                version, quarantine_only=again
            )  # another worker may have set it meanwhile
            reloading = self.catalog.engines.get(reload_on) if reload_on else None
            engine = reloading or lapsed or choose(failed)
            if engine is None or len(refusals) == MAX_REFUSALS:
                raise refusals[0] if refusals else NoEngineError(f"No engine can hold {version.id} now.")
            await self.before_claim()
            claim = await self.store.claim(
                name,
                engine.name,
                slots=engine.slots,
                owner=self.owner,
                ttl_ms=ttl,
                ignore=self._useless(engine, failed | avoid),
                reload=reloading is not None,
            )
            lapsed = None
            match claim.result:
                case ClaimResult.RESIDENT:
                    return claim.engine
                case ClaimResult.CLAIMED:
                    reload_on = None
                    result = await self.steps.load_and_verify(engine, version, claim.victim, refusals)
                    if result is LoadResult.OK:
                        return engine.name
                    if result is LoadResult.LOST:
                        lapsed, ttl = engine, min(2 * ttl, LONGEST_CLAIM_MS)
                        await self._pause(name)
                    else:
                        failed.add(engine.name)
                case ClaimResult.PINNED:
                    failed.add(engine.name)
                case ClaimResult.FULL if avoid and self.clock() > patience:
                    avoid = frozenset()  # a failed engine is better than none
                case ClaimResult.LOADING:
                    reload_on = None
                    await self._pause(name)
                case ClaimResult.FULL:
                    await self._pause(name)

    def _suspects(self, version: Version) -> set[str]:
        """Engines of the version's fleet that are suspect now."""
        verifier, fleet = self.verifier, self.catalog.fleet(version.base_model)
        return {e.name for e in fleet if verifier.is_suspect(e)} if verifier else set()

    def _useless(self, chosen: Engine, failed: Collection[str]) -> list[str]:
        """Engines whose residency does not count, because they take no requests now."""
        fleet = (e.name for e in self.catalog.fleet(chosen.base_model))
        return [e for e in fleet if e != chosen.name and (e in failed or not self.usable(e))]

    async def _pause(self, name: str) -> None:
        """Wait for a change. Gives up once no request waits or every deadline has passed."""
        load_in_flight = self._loads_in_flight[name]
        if load_in_flight.waiters == 0 or self.clock() > load_in_flight.deadline:
            raise PlacementError("no slot became free in time")
        await self.changed(RETRY_SECONDS)
