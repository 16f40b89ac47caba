"""`Loader.ensure_resident`: one load per version, however many requests and workers wait for it; and
`Loader.open_replica`, for a version that another engine holds.

Within a worker, all requests for a version share one load. Across workers, the claim in the store decides who
loads; the others see the version as `loading` and wait for its event. If a loading worker dies, its claim
lapses.

A load succeeds only once the version is verified. A failed verification is recorded as the version's serving
status, and every worker then refuses the version immediately.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from adapters.errors import LoadFailedError, NoEngineError, PlacementError, StoreUnavailableError
from adapters.model import Engine, Version
from adapters.placement.engine_client import EngineClient
from adapters.placement.load_steps import GRACE_MS, LoadObserver, LoadResult, LoadSteps, LoadTimer
from adapters.placement.recent_failures import RecentFailures
from adapters.placement.residency import Residency
from adapters.placement.single_flight import SingleFlight
from adapters.placement.verification import Verifier
from adapters.registry.catalog import Catalog
from adapters.registry.serving_status import SURE, ServingStatuses
from adapters.store.protocol import Store
from adapters.store.protocol.placement import Claim, ClaimResult

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
MAX_REFUSALS = 2
"""One refusal may be the engine's fault; a second engine's refusal means that the adapter is at fault."""


def _nothing(_tenant: str) -> Mapping[str, str]:
    return {}


def _untimed(_engine: Engine, _version: Version, _seconds: float) -> None:
    """Nobody learns from the times."""


class Choose(Protocol):
    """Returns the engine to load on, given the engines that failed so far, or None if none is left."""

    def __call__(self, failed: Collection[str], /) -> Engine | None: ...


@dataclass(slots=True)
class Loader:
    """Makes versions resident, with one load per version however many requests and workers want it.

    Invariants: within this worker a version has at most one load in flight, and one for each replica; a load
    outlives requests that give up as long as another waits; across workers the claim in the store decides who
    loads; `ensure_resident` returns an engine only after the load was verified and confirmed, or if the store
    says it is resident.

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
    requires: Callable[[str], Mapping[str, str]] = _nothing
    """Labels that a tenant requires of the engines that hold its versions."""
    timed: LoadTimer = _untimed
    clock: Callable[[], float] = time.monotonic
    serving_statuses: ServingStatuses = field(init=False)
    steps: LoadSteps = field(init=False)
    _loads: SingleFlight[str, str] = field(init=False)
    """version → the engine that holds it."""
    _replicas: SingleFlight[tuple[str, str], bool] = field(init=False)
    """(version, engine) → whether the engine holds it."""
    _failures: RecentFailures = field(init=False)

    def __post_init__(self) -> None:
        self._loads, self._replicas = SingleFlight(self.clock), SingleFlight(self.clock)
        self._failures = RecentFailures(self.clock)
        self.serving_statuses = ServingStatuses(self.store, self.catalog)
        self.steps = LoadSteps(
            self.store,
            self.catalog,
            self.residency,
            self.control,
            self.observer,
            self.owner,
            self.clock,
            self.timed,
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
        reason = self._failures.reason((name, ""))
        if reason is not None and not again:
            raise LoadFailedError(reason)
        try:
            load = partial(self._load, version, choose, reload_on, frozenset(avoid), again=again)
            return await self._loads.join(name, load, deadline)
        except TimeoutError:
            raise PlacementError(f"no slot became free for {version.id} in time") from None

    async def open_replica(self, version: Version, engine: Engine, *, deadline: float) -> bool:
        """Make `version` resident on `engine` although other engines hold it. `deadline` is on the loader's
        clock.

        False if the engine has no slot for it now, the fleet is loading as many replicas as it may, or the
        load failed here, in which case further calls return False at once for a while. The version keeps its
        serving status, unless its verification says that it must not be served. Raises
        StoreUnavailableError.
        """
        key = (version.engine_name, engine.name)
        if self._failures.reason(key) is not None:
            return False
        try:
            return await self._replicas.join(key, partial(self._load_replica, version, engine), deadline)
        except TimeoutError:
            return False

    def loads_since(self, version: Version | None, engine: str) -> int:
        """Return and reset the number of loads of `version` on `engine`. Of all requests that waited for a
        load, the first to ask is charged for it."""
        if version is None or not self.steps.loads:
            return 0
        return self.steps.loads.pop((version.engine_name, engine), 0)

    def may_hold(self, engine: Engine, version: Version) -> bool:
        """Whether the engine can hold the version, and has the labels that the version's owner requires."""
        return engine.fits(version) and engine.meets(self.requires(version.tenant))

    async def close(self) -> None:
        """Cancel the loads in flight. Their claims lapse."""
        await self._loads.close()
        await self._replicas.close()

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
        self._failures.forget((version.engine_name, ""))
        if version.engine_name in self.catalog.serving_statuses:
            with contextlib.suppress(StoreUnavailableError):  # the reconciler's next attempt clears it
                await self.serving_statuses.recovered(version)
        return engine

    async def _failed(self, version: Version, error: LoadFailedError) -> None:
        """Remember the failure for a while; after SURE consecutive failures, set the version's serving
        status."""
        count = self._failures.note((version.engine_name, ""), error)
        if count >= SURE or version.engine_name in self.catalog.serving_statuses:
            with contextlib.suppress(StoreUnavailableError):  # the next failure records it
                await self.serving_statuses.failed(version, error, count)

    async def _load_replica(self, version: Version, engine: Engine) -> bool:
        """Run one load on this engine alone."""
        key, unfit, ttl = (version.engine_name, engine.name), self._unfit(version), CLAIM_MS
        if engine.name in unfit:
            return False
        while self._replicas.wanted(key):
            try:
                self.serving_statuses.check(version)
                claim = await self._claim(version, engine, ttl, unfit, replica=True)
                match claim.result:
                    case ClaimResult.RESIDENT:
                        return True
                    case ClaimResult.ACTIVATED:
                        await self.steps.activated(engine, version, claim)
                        return True
                    case ClaimResult.CLAIMED:
                        refusals = list[LoadFailedError]()
                        result = await self.steps.load_and_verify(engine, version, claim, refusals)
                        if result is LoadResult.OK:
                            self._failures.forget(key)
                            return True
                        if result is not LoadResult.LOST:
                            if self._failures.note(key, result) >= SURE and refusals and engine.on_trial:
                                reason = f"it does not load what others do: {refusals[0]}"
                                await self.serving_statuses.suspect(engine, reason, {})
                            return False
                        ttl = min(2 * ttl, LONGEST_CLAIM_MS)
                    case ClaimResult.LOADING if claim.engine == engine.name:
                        pass  # another worker's load
                    case _:
                        return False
            except PlacementError:  # its serving status
                return False
            await self.changed(RETRY_SECONDS)
        return False

    async def _claim(
        self,
        version: Version,
        engine: Engine,
        ttl_ms: int,
        avoid: Collection[str],
        *,
        reload: bool = False,
        replica: bool = False,
    ) -> Claim:
        """`avoid`: engines whose residency does not count, in addition to those that take no requests."""
        await self.before_claim()
        return await self.store.claim(
            version.engine_name,
            engine.name,
            slots=engine.slots,
            cpu_slots=engine.cpu_slots,
            owner=self.owner,
            ttl_ms=ttl_ms,
            ignore=self._useless(engine, version, avoid),
            reload=reload,
            replica=replica,
            max_replicas=self._max_replicas(version),
            grace_ms=GRACE_MS,
        )

    def _max_replicas(self, version: Version) -> int | None:
        """An engine that is being drained counts only once its versions are elsewhere."""
        adapter = self.catalog.adapters.get(version.adapter)
        if adapter is None or adapter.max_replicas is None:
            return None
        places = (self.catalog.engines.get(name) for name in self.residency.places(version.engine_name))
        return adapter.max_replicas + sum(engine is not None and engine.moving for engine in places)

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
        failed = self._unfit(version)
        patience = self.clock() + PATIENCE_SECONDS
        ttl = CLAIM_MS
        lapsed: Engine | None = None
        """Engine on which the claim lapsed during the load. It already has the version, so the next load is
        quick."""
        while True:
            self.serving_statuses.check(
                version, quarantine_only=again
            )  # another worker may have set it meanwhile
            reloading = self.catalog.engines.get(reload_on) if reload_on and reload_on not in failed else None
            engine = reloading or lapsed or choose(failed)
            if engine is None or len(refusals) == MAX_REFUSALS:
                raise refusals[0] if refusals else NoEngineError(f"No engine can hold {version.id} now.")
            claim = await self._claim(version, engine, ttl, failed | avoid, reload=reloading is not None)
            lapsed = None
            match claim.result:
                case ClaimResult.RESIDENT:
                    return claim.engine
                case ClaimResult.ACTIVATED:
                    await self.steps.activated(engine, version, claim)
                    return engine.name
                case ClaimResult.CLAIMED:
                    reload_on = None
                    result = await self.steps.load_and_verify(engine, version, claim, refusals)
                    if result is LoadResult.OK:
                        return engine.name
                    if result is LoadResult.LOST:
                        lapsed, ttl = engine, min(2 * ttl, LONGEST_CLAIM_MS)
                        await self._pause(version)
                    else:
                        failed.add(engine.name)
                case ClaimResult.PINNED:
                    failed.add(engine.name)
                case ClaimResult.FULL if avoid and self.clock() > patience:
                    avoid = frozenset()  # a failed engine is better than none
                case ClaimResult.LOADING:
                    reload_on = None
                    await self._pause(version)
                case ClaimResult.FULL:
                    await self._pause(version)

    def _unfit(self, version: Version) -> set[str]:
        """Engines of the version's fleet that are suspect now, or that its owner's requirements exclude."""
        verifier = self.verifier
        return {
            engine.name
            for engine in self.catalog.fleet(version.base_model)
            if not self.may_hold(engine, version) or (verifier is not None and verifier.is_suspect(engine))
        }

    def _useless(self, chosen: Engine, version: Version, failed: Collection[str]) -> list[str]:
        """Engines whose residency does not count, because they take no requests for the version now."""
        return [
            engine.name
            for engine in self.catalog.fleet(chosen.base_model)
            if engine.name != chosen.name
            and (engine.name in failed or not self.usable(engine.name) or not self.may_hold(engine, version))
        ]

    async def _pause(self, version: Version) -> None:
        """Wait for a change. Gives up once no request waits or every deadline has passed."""
        if not self._loads.wanted(version.engine_name):
            raise PlacementError("no slot became free in time")
        await self.changed(RETRY_SECONDS)
