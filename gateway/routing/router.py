"""Routing: from a target to a lease on an engine that holds it."""

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
from gateway.routing.engine_deaths import DeathTracker
from gateway.routing.engine_state import EngineState
from gateway.routing.hang_detection import HangDetector
from gateway.routing.pool import Lease, Pool
from gateway.routing.query_of_death import REQUEST_DEATHS, Group
from gateway.routing.request_identity import RequestIdentity
from gateway.routing.retry_budget import RetryBudget
from gateway.routing.upstream import RetryElsewhere

MAX_ATTEMPTS = 3
"""Failed attempts on engines that may have worked on the request and are still alive."""
MAX_DETOURS = 20
"""All attempts, including those that cost engines nothing: unknown model, busy, connection refused."""
WAIT_SECONDS = 0.25
RETRY_SECONDS = 0.05
ISOLATION_SECONDS = 1.0
"""How long, in total, a suspect request waits for an engine without other suspects."""


@dataclass(slots=True)
class RoutingState:
    """The routing state of one request. Mutable; only the router changes it."""

    target: Target
    identity: RequestIdentity
    deadline: float
    attempts: int = 0
    failures: int = 0
    failed_on: set[str] = field(default_factory=set)
    reload_on: str | None = None
    loads: int = 0
    """Adapter loads caused by the next attempt."""
    losses: list[tuple[EngineState, int]] = field(default_factory=list)
    """Engines on which it failed, each with its `deaths` when the attempt began."""
    failed_attempt: tuple[Lease, RetryElsewhere] | None = None
    """The last failed attempt, if `place` has yet to decide whether to retry it."""
    isolation_deadline: float | None = None
    """When it stops waiting for an engine without suspects."""

    @property
    def deaths(self) -> int:
        """Number of engines that died while they had the request."""
        return sum(1 for state, before in self.losses if state.deaths > before)


class Router:
    """Chooses an engine for each attempt, and makes sure that it holds the version.

    The lifecycle calls it: `admit` and `routing_state` once per request, `place` before each attempt, then
    `record_answer` or `record_failure` with the outcome. Routing decisions are made by the pure policy in
    `adapters.placement.policy`; the router acts on them. It bounds retries by attempts, by the retry budget
    and by the request's deadline, and holds back requests that may have killed engines. It keeps nothing of
    a request itself: that is in the RoutingState. On the worker's event loop only.
    """

    def __init__(
        self,
        catalog: Catalog,
        pool: Pool,
        loader: Loader,
        changed: Callable[[float], Awaitable[None]],
        *,
        deaths: DeathTracker,
        hangs: HangDetector,
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
        """Raises FlorinError if the expected wait in the engines' queues is too long."""
        wait = self._pool.expected_wait(target.base_model, target.version) if self._max_queue else 0.0
        if wait > self._max_queue:
            raise FlorinError(
                "overloaded",
                f"Requests to {target.label} currently wait {wait:.0f} s, more than the limit of "
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
        if routing_state.failed_attempt is not None:
            await self._check_retry(routing_state, *routing_state.failed_attempt)
        while True:
            if version is not None and self._catalog.serving_statuses:  # wherever it is resident
                self._loader.serving_statuses.check(version, quarantine_only=True)
            if not self._may_send(routing_state):
                await self._pool.wait_for_trial(WAIT_SECONDS)
                continue
            engine = self._resident(routing_state) or await self._make_resident(routing_state)
            if engine and engine in self._to_avoid(routing_state):
                await self._pool.wait_for_trial(WAIT_SECONDS)
                continue
            if engine in routing_state.failed_on:  # no other engine is left: wait a moment
                await self._changed(RETRY_SECONDS * routing_state.attempts)
            lease = self._acquire(routing_state, engine) if engine else None
            if lease is not None:
                routing_state.attempts += 1
                routing_state.loads = self._loader.loads_since(
                    routing_state.target.version, lease.state.engine.name
                )
                return lease
            if self._clock() > routing_state.deadline:
                raise self._timeout_error(routing_state)
            await self._changed(WAIT_SECONDS)

    def _acquire(self, routing_state: RoutingState, engine: str) -> Lease | None:
        trial = self._deaths.suspects.any and self._deaths.suspects.suspected(routing_state.identity.group)
        return self._pool.acquire(engine, routing_state.target.version, routing_state.identity, trial=trial)

    def resume(self, routing_state: RoutingState) -> None:
        """The engine failed in mid-stream: restart the deadline for the next one."""
        routing_state.deadline = self._clock() + self._timeout

    def record_failure(self, routing_state: RoutingState, lease: Lease, trouble: RetryElsewhere) -> None:
        """Record a failed attempt. Raises FlorinError if no more attempts or time are left."""
        engine = lease.state.engine.name
        if trouble.suspect:
            lease.mark_suspect(str(trouble))
        # (The base model cannot be loaded, so an engine without it is useless.)
        if trouble.unknown_model and routing_state.target.version and engine not in routing_state.failed_on:
            routing_state.reload_on = engine
        else:
            routing_state.failed_on.add(engine)
        if lease.abandoned:  # the time was spent waiting for an answer, not for an engine
            routing_state.deadline = max(routing_state.deadline, self._clock() + self._timeout)
        if trouble.engine_worked or lease.abandoned:
            routing_state.losses.append((lease.state, lease.deaths))
            routing_state.failed_attempt = lease, trouble
        if trouble.engine_worked:
            self._pool.record_failed_attempt(lease.state)
        if routing_state.attempts >= MAX_DETOURS or self._clock() > routing_state.deadline:
            raise self._timeout_error(routing_state)

    def record_answer(self, lease: Lease) -> None:
        """Record an answer, success or refusal: the request did not kill the engine."""
        lease.state.failure_streak = 0
        if lease.identity is not None:
            lease.identity.answered = True
            self._deaths.answered(lease.identity)
            self._hangs.reports.answered(lease.identity)

    def scores(self, target: Target) -> Sequence[Score]:
        """For each engine of the fleet, the cost of serving the target, or the reason why it cannot."""
        return self._decision(target).scores

    def explain(self, target: Target) -> PlacementDecision:
        """The decision that would be made now, with the scores behind it."""
        return explained(self._decision(target))

    def _decision(self, target: Target) -> PlacementDecision:
        rank = target.version.rank if target.version else None
        return decide(self._candidates(target, ()), rank=rank)

    def refusals(self) -> dict[Group, tuple[int, float]]:
        """Suspended tenant/adapter pairs, each with the engine deaths counted and the seconds left."""
        return self._deaths.suspects.refusals()

    # -- steps

    async def _check_retry(self, routing_state: RoutingState, lease: Lease, trouble: RetryElsewhere) -> None:
        """Decide whether to retry a failed attempt. Raises FlorinError if too many attempts of this request,
        or of all requests, have failed. Failures due to an engine's death do not count against requests."""
        routing_state.failed_attempt = None
        state = lease.state
        if trouble.engine_worked:
            await self._pool.wait_for_probe(state)
        if state.outages > lease.outages:
            if state.outages_charged != state.outages:
                state.outages_charged = state.outages
                self._budget.charge()
            return
        if not trouble.engine_worked:
            return
        routing_state.failures += 1
        if routing_state.failures >= MAX_ATTEMPTS:
            raise FlorinError(
                "engine_failed",
                f"All {routing_state.attempts} attempts failed; the last error was {trouble.reason}.",
                retry_after=1,
            )
        if not self._budget.allows():
            raise FlorinError(
                "engine_failed",
                f"The attempt failed ({trouble.reason}), and the retry budget is exhausted.",
                retry_after=self._budget.wait(),
            )

    def _may_send(self, routing_state: RoutingState) -> bool:
        """Whether the request may be sent now; False: wait a moment. Raises FlorinError if it is blocked
        because it may have killed engines."""
        suspects, identity = self._deaths.suspects, routing_state.identity
        left = self._hangs.reports.refused(identity)
        if left:
            raise FlorinError(
                "engine_hung",
                f"Engines hung more than once while serving this request. It is blocked for {left:.0f} s.",
                retry_after=math.ceil(left),
            )
        if routing_state.losses and routing_state.deaths >= REQUEST_DEATHS:
            raise suspected(suspects.refused(identity.fingerprint))
        if not suspects.any or not suspects.known(identity.group):
            return True
        self._deaths.refuse_group(identity.group)
        left = suspects.refused(identity.fingerprint)
        if left and self._may_wait(routing_state) and self._pool.in_flight(identity):
            return False  # the answer to the identical request will tell
        if left:
            raise suspected(left)
        return True

    def _to_avoid(self, routing_state: RoutingState) -> set[str]:
        """Engines that a suspect request should avoid because they run suspects of other groups: if one dies,
        the cause should be clear. Empty for requests that are not suspect, and after ISOLATION_SECONDS."""
        suspects, group = self._deaths.suspects, routing_state.identity.group
        if not suspects.any or not suspects.suspected(group):
            return set()
        names = {
            lease.state.engine.name
            for lease in self._pool.trials()
            if lease.identity and lease.identity.group != group
        }
        return names if names and self._may_wait(routing_state) else set()

    def _may_wait(self, routing_state: RoutingState) -> bool:
        now = self._clock()
        if routing_state.isolation_deadline is None:
            routing_state.isolation_deadline = now + ISOLATION_SECONDS
        return now < min(routing_state.isolation_deadline, routing_state.deadline)

    def _resident(self, routing_state: RoutingState) -> str | None:
        """An engine that already holds the target."""
        version = routing_state.target.version
        if routing_state.reload_on:
            return None
        if version is not None:
            holders = self._pool.holders(version, routing_state.failed_on)
            apart = self._to_avoid(routing_state) if len(holders) > 1 else ()
            holders = [c for c in holders if c.engine not in apart] or holders
            if len(holders) == 1:
                return holders[0].engine
            return decide(holders, rank=version.rank).engine if holders else None
        passed = routing_state.failed_on | self._to_avoid(routing_state)
        return decide(self._candidates(routing_state.target, passed), rank=None).engine

    async def _make_resident(self, routing_state: RoutingState) -> str | None:
        """Load the version where that costs least. None: wait and try again."""
        version = routing_state.target.version
        if version is None:
            self._check_servable(routing_state)
            return None

        def choose(failed: Collection[str], /) -> Engine | None:
            candidates = self._candidates(
                routing_state.target, routing_state.failed_on | self._to_avoid(routing_state)
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
            self._check_servable(routing_state)
            return None
        except (LoadFailedError, QuarantinedError):
            raise
        except PlacementError as error:
            if self._clock() > routing_state.deadline:
                raise self._timeout_error(routing_state) from error
            raise

    def _candidates(self, target: Target, failed: Collection[str]) -> list[Candidate]:
        fleet = self._pool.fleet(target.base_model, target.version, set(failed))
        verifier = self._loader.verifier
        if verifier is None or not self._catalog.serving_statuses:
            return fleet
        suspects = {e.name for e in self._catalog.fleet(target.base_model) if verifier.is_suspect(e)}
        return [replace(c, suspect=c.engine in suspects) for c in fleet]

    def _check_servable(self, routing_state: RoutingState) -> None:
        """Raises FlorinError if waiting is pointless: an engine that is down may return, one that is too
        small will not grow."""
        scores = self.scores(routing_state.target)
        if not any(s.cost is not None or s.reason == UNHEALTHY for s in scores):
            self._check_hangs(routing_state)
            reasons = "; ".join(f"{s.engine}: {s.reason}" for s in scores) or "none is registered"
            raise FlorinError(
                "no_engine", f"No engine can serve {routing_state.target.label}: {reasons}.", retry_after=5
            )

    def _check_hangs(self, routing_state: RoutingState) -> None:
        """Raises FlorinError if engines hang, since that may last for hours."""
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

    def _timeout_error(self, routing_state: RoutingState) -> FlorinError:
        return FlorinError(
            "placement_timeout",
            f"No engine started to answer for {routing_state.target.label} within {self._timeout:g} s.",
            retry_after=1,
        )


def suspected(left: float) -> FlorinError:
    """The error for a request that is blocked because it may have killed engines."""
    seconds = math.ceil(left) or 1
    return FlorinError(
        "request_suspected",
        f"Engines died more than once while serving this request. It is blocked for {seconds} s.",
        retry_after=seconds,
    )
