"""Schedule, and see that the version is there: from a target to a lease on an engine."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from adapters.errors import LoadFailedError, NoEngineError, PlacementError, QuarantinedError
from adapters.model import Engine
from adapters.placement.loader import Loader
from adapters.placement.policy import UNHEALTHY, Candidate, PlacementDecision, Score, decide, explained
from adapters.registry.catalog import Catalog, Target
from gateway.errors import FlorinError
from gateway.routing.engine_deaths import DeathWatch
from gateway.routing.engine_state import EngineState
from gateway.routing.hang_detection import HangWatch
from gateway.routing.pool import Lease, Pool
from gateway.routing.query_of_death import REQUEST_DEATHS, Group
from gateway.routing.request_identity import RequestIdentity
from gateway.routing.retry_budget import RetryBudget
from gateway.routing.upstream import RetryElsewhere

MAX_ATTEMPTS = 3
"""Attempts on which engines may have worked and failed, and live."""
MAX_DETOURS = 20
"""Attempts that cost engines nothing: unknown model, busy, refused connections."""
WAIT_SECONDS = 0.25
RETRY_SECONDS = 0.05
PATIENCE_SECONDS = 1.0
"""How long, in all, a request waits so as not to share an engine with what may kill it."""


@dataclass(slots=True)
class RoutingState:
    """One request's way through the fleet: mutable, one for each request."""

    target: Target
    identity: RequestIdentity
    deadline: float
    attempts: int = 0
    failures: int = 0
    failed_on: set[str] = field(default_factory=set)
    reload_on: str | None = None
    loads: int = 0
    """Adapter loads that the attempt to come has caused."""
    losses: list[tuple[EngineState, int]] = field(default_factory=list)
    """Engines on which it failed, and how often each had died before."""
    unjudged: tuple[Lease, RetryElsewhere] | None = None
    """The last attempt, and what it met."""
    patience: float | None = None
    """When it stops waiting for an engine without suspects."""

    @property
    def deaths(self) -> int:
        """Engines that died while it was there."""
        return sum(1 for state, before in self.losses if state.deaths > before)


class Router:
    def __init__(
        self,
        catalog: Catalog,
        pool: Pool,
        loader: Loader,
        changed: Callable[[float], Awaitable[None]],
        *,
        deaths: DeathWatch,
        hangs: HangWatch,
        budget: RetryBudget,
        timeout: float,
        max_queue: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._pool = pool
        self._loader = loader
        self._changed = changed
        self._deaths = deaths
        self._hangs = hangs
        self._budget = budget
        self._timeout = timeout
        self._max_queue = max_queue
        self._clock = clock

    def reconfigure(self, *, timeout: float, max_queue: float) -> None:
        self._timeout, self._max_queue = timeout, max_queue

    def admit(self, target: Target) -> None:
        """Raises FlorinError when a request would wait for longer than it should."""
        wait = self._pool.expected_wait(target.base_model, target.version) if self._max_queue else 0.0
        if wait > self._max_queue:
            raise FlorinError(
                "overloaded",
                f"{target.label} would wait {wait:.0f} s for an engine to begin it, longer than "
                f"{self._max_queue:g} s.",
                retry_after=math.ceil(wait),
            )

    def routing_state(self, target: Target, identity: RequestIdentity) -> RoutingState:
        self._budget.request()
        return RoutingState(target, identity, self._clock() + self._timeout)

    async def place(self, routing_state: RoutingState) -> Lease:
        """A lease on an engine that holds the target. Raises FlorinError, QuarantinedError, LoadFailedError,
        StoreUnavailableError."""
        version = routing_state.target.version
        if routing_state.unjudged is not None:
            await self._judge(routing_state, *routing_state.unjudged)
        while True:
            if version is not None and self._catalog.serving_statuses:  # wherever it is resident
                self._loader.serving_statuses.check(version, quarantine_only=True)
            if not self._sendable(routing_state):
                await self._pool.settled(WAIT_SECONDS)
                continue
            engine = self._resident(routing_state) or await self._make_resident(routing_state)
            if engine and engine in self._apart(routing_state):
                await self._pool.settled(WAIT_SECONDS)
                continue
            if engine in routing_state.failed_on:  # nothing better is left: give it a moment
                await self._changed(RETRY_SECONDS * routing_state.attempts)
            lease = self._acquire(routing_state, engine) if engine else None
            if lease is not None:
                routing_state.attempts += 1
                routing_state.loads = self._loader.loads_since(
                    routing_state.target.version, lease.state.engine.name
                )
                return lease
            if self._clock() > routing_state.deadline:
                raise self._too_late(routing_state)
            await self._changed(WAIT_SECONDS)

    def _acquire(self, routing_state: RoutingState, engine: str) -> Lease | None:
        trial = self._deaths.suspects.any and self._deaths.suspects.suspected(routing_state.identity.group)
        return self._pool.acquire(engine, routing_state.target.version, routing_state.identity, trial=trial)

    def resume(self, routing_state: RoutingState) -> None:
        """The engine failed in the middle of the answer: another has as long to go on as it had to begin."""
        routing_state.deadline = self._clock() + self._timeout

    def learn(self, routing_state: RoutingState, lease: Lease, trouble: RetryElsewhere) -> None:
        """Remember what an attempt met, so that the next goes elsewhere; FlorinError when it was the last."""
        engine = lease.state.engine.name
        if trouble.suspect:
            lease.doubt(str(trouble))
        # (The base model cannot be loaded: who does not know it is simply no use.)
        if trouble.unknown_model and routing_state.target.version and engine not in routing_state.failed_on:
            routing_state.reload_on = engine
        else:
            routing_state.failed_on.add(engine)
        if lease.abandoned:  # what it waited for was an answer, not an engine
            routing_state.deadline = max(routing_state.deadline, self._clock() + self._timeout)
        if trouble.counts or lease.abandoned:
            routing_state.losses.append((lease.state, lease.deaths))
            routing_state.unjudged = lease, trouble
        if trouble.counts:
            self._pool.failed(lease.state)
        if routing_state.attempts >= MAX_DETOURS or self._clock() > routing_state.deadline:
            raise self._too_late(routing_state)

    def served(self, lease: Lease) -> None:
        """The engine has answered, well or with a refusal: the request did not kill it."""
        lease.state.streak = 0
        if lease.identity is not None:
            lease.identity.answered = True
            self._deaths.answered(lease.identity)
            self._hangs.reports.answered(lease.identity)

    def scores(self, target: Target) -> Sequence[Score]:
        """What it would cost each engine of the fleet to serve the target, or why it cannot."""
        return self._decision(target).scores

    def explain(self, target: Target) -> PlacementDecision:
        """The decision as it would fall now, for people: with the scores that decide."""
        return explained(self._decision(target))

    def _decision(self, target: Target) -> PlacementDecision:
        rank = target.version.rank if target.version else None
        return decide(self._candidates(target, ()), rank=rank)

    def refusals(self) -> dict[Group, tuple[int, float]]:
        """Tenants' uses of adapters that are held back: deaths of engines that count, seconds left."""
        return self._deaths.suspects.refusals()

    # -- steps

    async def _judge(self, routing_state: RoutingState, lease: Lease, trouble: RetryElsewhere) -> None:
        """Whether a failed attempt may be followed by another: not when too many have failed in all. What an
        engine's end took with it is not held against the requests that it took."""
        routing_state.unjudged = None
        state = lease.state
        if trouble.counts:
            await self._pool.probed(state)
        if state.ends > lease.ends:
            if state.ends_charged != state.ends:
                state.ends_charged = state.ends
                self._budget.charge()
            return
        if not trouble.counts:
            return
        routing_state.failures += 1
        if routing_state.failures >= MAX_ATTEMPTS:
            raise FlorinError(
                "engine_failed",
                f"{routing_state.attempts} attempts failed, the last with: {trouble.reason}.",
                retry_after=1,
            )
        if not self._budget.allows():
            raise FlorinError(
                "engine_failed",
                f"The attempt failed ({trouble.reason}), and so do too many others to try each again.",
                retry_after=self._budget.wait(),
            )

    def _sendable(self, routing_state: RoutingState) -> bool:
        """Raises FlorinError for what may have killed engines; False for what should wait for a moment."""
        suspects, identity = self._deaths.suspects, routing_state.identity
        left = self._hangs.reports.refused(identity)
        if left:
            raise FlorinError(
                "engine_hung",
                f"Engines hung more than once while they had this request. It is held back for {left:.0f} s.",
                retry_after=math.ceil(left),
            )
        if routing_state.losses and routing_state.deaths >= REQUEST_DEATHS:
            raise suspected(suspects.refused(identity.fingerprint))
        if not suspects.any or not suspects.known(identity.group):
            return True
        self._deaths.refuse_group(identity.group)
        left = suspects.refused(identity.fingerprint)
        if left and self._patient(routing_state) and self._pool.in_flight(identity):
            return False  # the answer to its like will tell
        if left:
            raise suspected(left)
        return True

    def _apart(self, routing_state: RoutingState) -> set[str]:
        """Engines that hold what may kill them, for whoever may do so too: when one of them dies, each should
        have met no other death. Nobody waits for long, and who is under no suspicion does not wait at all."""
        suspects, group = self._deaths.suspects, routing_state.identity.group
        if not suspects.any or not suspects.suspected(group):
            return set()
        names = {
            lease.state.engine.name
            for lease in self._pool.trials()
            if lease.identity and lease.identity.group != group
        }
        return names if names and self._patient(routing_state) else set()

    def _patient(self, routing_state: RoutingState) -> bool:
        now = self._clock()
        if routing_state.patience is None:
            routing_state.patience = now + PATIENCE_SECONDS
        return now < min(routing_state.patience, routing_state.deadline)

    def _resident(self, routing_state: RoutingState) -> str | None:
        """An engine that holds the target now."""
        version = routing_state.target.version
        if routing_state.reload_on:
            return None
        if version is not None:
            holders = self._pool.holders(version, routing_state.failed_on)
            apart = self._apart(routing_state) if len(holders) > 1 else ()
            holders = [c for c in holders if c.engine not in apart] or holders
            if len(holders) == 1:
                return holders[0].engine
            return decide(holders, rank=version.rank).engine if holders else None
        passed = routing_state.failed_on | self._apart(routing_state)
        return decide(self._candidates(routing_state.target, passed), rank=None).engine

    async def _make_resident(self, routing_state: RoutingState) -> str | None:
        """Load it where that costs least; None when that must wait."""
        version = routing_state.target.version
        if version is None:
            self._check_hope(routing_state)
            return None

        def choose(failed: Collection[str], /) -> Engine | None:
            candidates = self._candidates(
                routing_state.target, routing_state.failed_on | self._apart(routing_state)
            )
            name = decide([c for c in candidates if c.engine not in failed], rank=version.rank).engine
            return self._catalog.engines.get(name) if name else None

        reload_on, routing_state.reload_on = routing_state.reload_on, None
        try:
            return await self._loader.ensure_resident(
                version,
                choose,
                deadline=routing_state.deadline,
                reload_on=reload_on,
                avoid=routing_state.failed_on,
            )
        except NoEngineError:
            self._check_hope(routing_state)
            return None
        except (LoadFailedError, QuarantinedError):
            raise
        except PlacementError as error:
            if self._clock() > routing_state.deadline:
                raise self._too_late(routing_state) from error
            raise

    def _candidates(self, target: Target, failed: Collection[str]) -> list[Candidate]:
        fleet = self._pool.fleet(target.base_model, target.version, set(failed))
        verifier = self._loader.verifier
        if verifier is None or not self._catalog.serving_statuses:
            return fleet
        suspects = {e.name for e in self._catalog.fleet(target.base_model) if verifier.is_suspect(e)}
        return [replace(c, suspect=c.engine in suspects) for c in fleet]

    def _check_hope(self, routing_state: RoutingState) -> None:
        """Wait only for what can come: an engine that is down may return, one that is too small will not
        grow."""
        scores = self.scores(routing_state.target)
        if not any(s.cost is not None or s.reason == UNHEALTHY for s in scores):
            self._check_hangs(routing_state)
            reasons = "; ".join(f"{s.engine}: {s.reason}" for s in scores) or "none is registered"
            raise FlorinError(
                "no_engine", f"No engine can serve {routing_state.target.label}: {reasons}.", retry_after=5
            )

    def _check_hangs(self, routing_state: RoutingState) -> None:
        """Rather an answer at once than a wait for an engine that may hang for hours."""
        hanging = [
            state
            for state in self._pool.states()
            if state.engine.base_model == routing_state.target.base_model and state.standing.hangs
        ]
        if hanging:
            names = ", ".join(sorted(state.engine.name for state in hanging))
            raise FlorinError(
                "engine_hung",
                f"No engine can serve {routing_state.target.label} now: "
                f"{names} hang{'s' * (len(hanging) == 1)}.",
                retry_after=min(math.ceil(self._hangs.next_probe(state)) or 1 for state in hanging),
            )

    def _too_late(self, routing_state: RoutingState) -> FlorinError:
        return FlorinError(
            "placement_timeout",
            f"No engine began to answer for {routing_state.target.label} within {self._timeout:g} s.",
            retry_after=1,
        )


def suspected(left: float) -> FlorinError:
    """Of a request that is not sent to an engine again."""
    seconds = math.ceil(left) or 1
    return FlorinError(
        "request_suspected",
        f"Engines died more than once while they had this request. It is not sent again for {seconds} s.",
        retry_after=seconds,
    )
