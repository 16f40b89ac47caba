"""Routing: from a target to a lease on an engine that holds it."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial

from adapters.errors import (
    LoadFailedError,
    NoEngineError,
    PlacementError,
    QuarantinedError,
    StoreUnavailableError,
)
from adapters.model import Engine, Task, Version
from adapters.placement.loader import Loader
from adapters.placement.requirements import NO_LABELS, SCORES_PROMPTS, combined, for_task
from adapters.placement.scheduling.filters import FULL, NOT_UP, PASSING, PRIVATE
from adapters.placement.scheduling.patience import worth_waiting
from adapters.placement.scheduling.prefix_cache import NOTHING_SEEN, Seen
from adapters.placement.scheduling.scheduler import OPENS, Scheduler
from adapters.placement.scheduling.view import Action, Ask, EngineView, Fleet, Pick, Score
from adapters.registry.canary_figures import ArmName
from adapters.registry.catalog import Catalog, Target
from gateway.admission.fair_queue.fleet_queue import FleetQueue
from gateway.admission.fair_queue.waiting import Fit
from gateway.errors import FlorinError, unsupported_endpoint
from gateway.routing.canary_counts import CanaryCounts, ComparedRequest
from gateway.routing.decision_log import Search
from gateway.routing.engine_state import Lease
from gateway.routing.fleets import Fleets
from gateway.routing.hang_detection import HangDetector
from gateway.routing.leases import Leases
from gateway.routing.retries import Retries
from gateway.routing.routing_state import RoutingState
from gateway.routing.suspect_isolation import SuspectIsolation
from gateway.routing.turns import Lack

WAIT_SECONDS = 0.25
RETRY_SECONDS = 0.05
NO_ROOM_SECONDS = 1.0
"""For how long a request tries no replica on an engine that had no slot for it."""


class Router:
    """Chooses an engine for each attempt, and makes sure that it holds the version.

    Before each attempt, the lifecycle calls `place_at_once`, and `place` if the request must wait for
    something. The scheduler, which is pure, makes the decisions; the router acts on them when it is the
    request's turn. It keeps nothing of a request itself: that is in the RoutingState. On the worker's event
    loop only.
    """

    def __init__(
        self,
        catalog: Catalog,
        fleets: Fleets,
        leases: Leases,
        loader: Loader,
        retries: Retries,
        isolation: SuspectIsolation,
        *,
        scheduler: Scheduler,
        hangs: HangDetector,
        counts: CanaryCounts,
        changed: Callable[[float], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` waits for a change of the registry or the placement, for so many seconds at most."""
        self._catalog = catalog
        self._fleets = fleets
        self._leases = leases
        self.turns = leases.turns
        self._loader = loader
        self._retries = retries
        self._isolation = isolation
        self.scheduler = scheduler
        self._hangs = hangs
        self._counts = counts
        self._prefixes = leases.prefixes
        self._changed = changed
        self._clock = clock

    def place_at_once(self, routing_state: RoutingState) -> Lease | None:
        """A lease for a new request that nothing keeps waiting: nobody goes before it, and the best engine
        holds the target and has room. None: `place` it."""
        target, ticket = routing_state.target, routing_state.ticket
        if routing_state.attempts or self._isolation.concerns(routing_state.identity.group):
            return None
        queue, fleet = self.turns.queue(target.base_model), self._fleets.of(target.base_model)
        if not self.turns.goes(queue, ticket):
            return None
        if target.version is not None:
            name = target.version.engine_name
            if name in self._catalog.serving_statuses or not fleet.placed(name):
                return None  # choosing where to load it takes longer
        pick = self._pick(routing_state, queue, fleet)
        if pick is None or pick.action is not Action.SERVE:
            return None
        lease = self._lease(routing_state, pick.engine, queue, fleet)
        if lease is None:
            self.turns.release(queue, ticket)
        return lease

    async def place(self, routing_state: RoutingState) -> Lease:
        """A lease on an engine that holds the target. Raises FlorinError, QuarantinedError, LoadFailedError,
        StoreUnavailableError."""
        target, unplaced = routing_state.target, self._leases.unplaced
        queue = self.turns.queue(target.base_model)
        began, queued, loading = self._clock(), routing_state.ticket.waited, routing_state.loading
        unplaced.add(target)
        try:
            return await self._place(routing_state)
        finally:
            routing_state.search = Search(
                self._clock() - began, routing_state.ticket.waited - queued, routing_state.loading - loading
            )
            unplaced.remove(target)
            self.turns.release(queue, routing_state.ticket)

    async def _place(self, routing_state: RoutingState) -> Lease:
        version = routing_state.target.version
        if routing_state.failed_attempt is not None:
            await self._retries.check(routing_state, *routing_state.failed_attempt)
        while True:
            if version is not None and self._catalog.serving_statuses:  # wherever it is resident
                self._loader.serving_statuses.check(version, quarantine_only=True)
            if not self._isolation.may_send(routing_state):
                await self._leases.wait_for_trial(WAIT_SECONDS)
                continue
            no_room, waited = len(routing_state.no_room_on), routing_state.waited
            engine = await self._find(routing_state)
            again = engine in routing_state.failed_on
            if again:  # no other engine is left: wait a moment
                await self._changed(RETRY_SECONDS * routing_state.attempts)
            # During a wait, identical requests may have killed the engines that they were on.
            if (again or routing_state.waited > waited) and not self._isolation.may_send(routing_state):
                await self._leases.wait_for_trial(WAIT_SECONDS)
                continue
            if engine and not self._meets(engine, routing_state):  # another worker loaded it there
                engine = None
            if engine and engine in self._isolation.to_avoid(routing_state):
                await self._leases.wait_for_trial(WAIT_SECONDS)
                continue
            if engine:
                base_model = routing_state.target.base_model
                queue, fleet = self.turns.queue(base_model), self._fleets.of(base_model)
                if (lease := self._lease(routing_state, engine, queue, fleet)) is not None:
                    return lease
            if self._clock() > routing_state.deadline:
                raise self._retries.timeout_error(routing_state.target)
            if len(routing_state.no_room_on) <= no_room:  # otherwise use an engine that has it, at once
                await self._changed(WAIT_SECONDS)

    def _lease(
        self, routing_state: RoutingState, engine: str, queue: FleetQueue, fleet: Fleet
    ) -> Lease | None:
        """A lease on the engine, to which the request is about to be sent; None: it has no room any more."""
        target, ticket, identity = routing_state.target, routing_state.ticket, routing_state.identity
        view = fleet.engines.get(engine)
        if view is not None and not self.turns.take(queue, ticket, view):
            return None
        seen = None if routing_state.seen is None else routing_state.seen.get(engine)
        tokens = routing_state.prompt_tokens
        if seen is not None and view is not None:
            tokens = view.prefixes.uncached(tokens, seen)
        lease = self._leases.acquire(
            engine,
            target.version,
            identity,
            trial=self._isolation.suspects(identity.group),
            prompt_tokens=tokens,
            ticket=ticket,
        )
        if lease is not None:
            lease.answer_by, lease.requires = routing_state.answer_by, routing_state.requires
            lease.seen = seen
            if routing_state.blocks:
                self._prefixes.note(routing_state.blocks, engine, self._clock(), seen)
            if fleet.trials and not routing_state.attempts:
                routing_state.compared += tuple(self._in_trials(routing_state, engine, fleet))
            routing_state.attempts += 1
            routing_state.loads = self._loader.loads_since(target.version, engine)
        return lease

    def _in_trials(self, routing_state: RoutingState, engine: str, fleet: Fleet) -> Iterator[ComparedRequest]:
        """The trials in which the request counts: that of its engine, if its lot fell to it; else those of
        engines that could have served it as this one does."""
        on_trial = routing_state.pick is not None and routing_state.pick.on_trial
        if engine in fleet.trials and not on_trial:
            return  # the last resort
        now, version = self._clock(), routing_state.target.engine_name if routing_state.target.version else ""
        names = [engine] if on_trial else [n for n in fleet.trials if fleet.engines[n].holds(version, now)]
        for name in names:
            if (document := self._catalog.engines.get(name)) is not None and document.on_trial:
                arm: ArmName = "canary" if on_trial else "live"
                yield self._counts.of_trial(document, arm, engine, batch=routing_state.ticket.fills)

    def require_task(
        self, target: Target, requires: Mapping[str, str], task: Task, path: str
    ) -> Mapping[str, str]:
        """`requires`, with the label of engines for this task, unless all of the fleet are for it. Raises
        FlorinError if none is. `path`: the route that was called."""
        some, all_ = self._fleets.tasks(target.base_model)
        if task in all_:
            return requires
        if some and task not in some:
            raise unsupported_endpoint(path)
        return combined(requires, for_task(task))

    def context(self, target: Target) -> int:
        """Most tokens of a prompt and its answer that any engine of the fleet takes; 0: not known of all."""
        return self._fleets.context(target.base_model)

    def require_scoring(self, target: Target, requires: Mapping[str, str], name: str) -> Mapping[str, str]:
        """`requires`, with the label of engines that survive scoring a prompt. Raises FlorinError if no
        engine of the fleet is known to. `name`: the request's field."""
        engines = self._fleets.of(target.base_model).engines.values()
        both = combined(requires, SCORES_PROMPTS)
        if not any(view.meets(both) for view in engines):
            raise FlorinError(
                "unsupported_parameter",
                f"`{name}` is not supported: scoring prompt tokens can crash an engine with all of its "
                "requests, and no engine of this model is known to be safe.",
                param=name,
            )
        return both

    def scores(
        self, target: Target, requires: Mapping[str, str] = NO_LABELS, *, even_full: bool = False
    ) -> list[Score]:
        """Each engine of the fleet, best first: what serving the target there would cost now, or why it
        cannot. `even_full`: whether or not it has room for a request."""
        ask = self._ask(target, requires, even_full=even_full)
        return self.scheduler.scores(ask, self._fleets.of(target.base_model), self._clock())

    # -- its turn

    async def _turn(self, routing_state: RoutingState) -> Pick | None:
        """The engine picked for the request, which has its turn. None: it waits for something else. Raises
        FlorinError if waiting is pointless or would be too long."""
        queue, ticket = self.turns.queue(routing_state.target.base_model), routing_state.ticket
        if self.turns.goes(queue, ticket):
            if self._fit(routing_state):
                pick = routing_state.pick
                if pick is not None and pick.action is not Action.SERVE:
                    self.turns.keep(queue, ticket, self._picked(routing_state))
                return pick
            if self._lack(routing_state) is Lack.OTHER:
                return None
        version, waited = routing_state.target.version, ticket.waited
        lane = version.engine_name if version else "", tuple(sorted(routing_state.requires.items()))
        self.turns.release(queue, ticket)  # what an earlier turn has left
        try:
            await self.turns.wait(
                queue,
                ticket,
                lane,
                partial(self._fit, routing_state),
                partial(self._picked, routing_state),
                partial(self._lack, routing_state),
            )
        finally:
            routing_state.deadline += ticket.waited - waited  # it bounds the search for an engine only
        return routing_state.pick

    def _fit(self, routing_state: RoutingState) -> Fit:
        """Whether an engine has room for the request, and is worth it: `pick` is the one."""
        base_model = routing_state.target.base_model
        pick = self._pick(routing_state, self.turns.queue(base_model), self._fleets.of(base_model))
        if pick is None:
            return Fit.NO
        if pick.action not in OPENS:
            return Fit.READY
        return Fit.NO if self._should_wait(routing_state, pick) else Fit.OPENS

    def _should_wait(self, routing_state: RoutingState, pick: Pick) -> bool:
        """Whether to wait for an engine that holds the version, instead of opening another replica."""
        target, ticket = routing_state.target, routing_state.ticket
        if target.version is None or not self.turns.enabled:
            return False
        trials = self._fleets.of(target.base_model).trials  # for which nobody waits
        holders = [s.view for s in self._fleets.holders(target.version) if s.engine.name not in trials]
        return worth_waiting(
            pick,
            self._picked(routing_state),
            [view for view in holders if view.meets(routing_state.requires)],
            rank=target.version.rank,
            yields=self.turns.yields(self.turns.queue(target.base_model), ticket),
            fills=ticket.fills,
            waited=self._clock() - ticket.since,
        )

    def _picked(self, routing_state: RoutingState) -> EngineView:
        """The engine that was picked last."""
        assert routing_state.pick is not None
        return self._fleets.of(routing_state.target.base_model).engines[routing_state.pick.engine]

    # -- steps

    def _meets(self, engine: str, routing_state: RoutingState) -> bool:
        """Whether the engine has the labels that the request requires."""
        view = self._fleets.of(routing_state.target.base_model).engines.get(engine)
        return view is not None and view.meets(routing_state.requires)

    async def _find(self, routing_state: RoutingState) -> str | None:
        """The engine to use. It holds the target now, as far as this worker knows. None: try again."""
        version = routing_state.target.version
        if version is not None and routing_state.reload_on:
            return await self._load(routing_state, version)
        pick = await self._turn(routing_state)
        if pick is None:
            return None
        if version is None or pick.action is Action.SERVE:
            return pick.engine
        holders = self._fleets.holders(version)
        if not holders:
            return await self._load(routing_state, version)
        serving = [state for state in holders if state.view.meets(routing_state.requires)]
        if pick.action is not Action.ACTIVATE and any(state.engine.moving for state in serving):
            # The leader loads it elsewhere, and no request needs to wait for that.
            engine = min(serving, key=lambda state: (state.view.full, state.view.base)).engine.name
            routing_state.pick = replace(pick, engine=engine, action=Action.SERVE)
            return engine
        return await self._replicate(routing_state, version, pick.engine)

    def _ask(
        self,
        target: Target,
        requires: Mapping[str, str],
        *,
        prompt_tokens: int = 0,
        seen: Mapping[str, Seen] = NOTHING_SEEN,
        excluded: Collection[str] = (),
        no_room_on: Collection[str] = (),
        even_full: bool = False,
        yields: bool = False,
        fills: bool = False,
    ) -> Ask:
        version = target.version
        name, rank, most = "", 0, None
        if version is not None:
            name, rank = version.engine_name, version.rank
            adapter = self._catalog.adapters.get(version.adapter)
            most = adapter.max_replicas if adapter else None
        return Ask(
            name, rank, prompt_tokens, seen, excluded, no_room_on, requires, most, even_full, yields,
            version, fills,
        )  # fmt: skip

    def _pick(
        self, routing_state: RoutingState, queue: FleetQueue, fleet: Fleet, passed: Collection[str] = ()
    ) -> Pick | None:
        target, ticket, now = routing_state.target, routing_state.ticket, self._clock()
        if routing_state.no_room_until <= now:
            routing_state.no_room_on.clear()
        if routing_state.seen is None:
            routing_state.seen = self._prefixes.seen(routing_state.blocks, now)
        to_avoid = self._isolation.to_avoid(routing_state)
        failed_on, no_room_on = routing_state.failed_on, routing_state.no_room_on
        ask = self._ask(
            target,
            routing_state.requires,
            prompt_tokens=routing_state.prompt_tokens,
            seen=routing_state.seen,
            excluded=failed_on | to_avoid if to_avoid else failed_on,
            no_room_on=no_room_on.union(passed) if passed else no_room_on,
            yields=self.turns.yields(queue, ticket),
            fills=ticket.fills,
        )
        if fleet.trials and not routing_state.attempts:
            if routing_state.lot is None:
                routing_state.lot = random.random()  # noqa: S311 - a share of traffic is no secret
            ask.lot = routing_state.lot
        kept = ticket.place is not None
        if kept:
            self.turns.give_up_place(ticket)  # which does not stand in its own way
        pick = routing_state.pick = self.scheduler.pick(ask, fleet, now)
        if kept and pick is not None:
            self.turns.keep(queue, ticket, fleet.engines[pick.engine])
        return pick

    async def _load(self, routing_state: RoutingState, version: Version) -> str | None:
        """Load the version where that costs least. None: wait and try again."""

        def choose(failed: Collection[str], /) -> Engine | None:
            base_model = version.base_model
            queue, fleet = self.turns.queue(base_model), self._fleets.of(base_model)
            pick = self._pick(routing_state, queue, fleet, failed)
            return self._catalog.engines.get(pick.engine) if pick else None

        reload_on, routing_state.reload_on = routing_state.reload_on, None
        began = self._clock()
        try:
            return await self._loader.ensure_resident(
                version,
                choose,
                deadline=routing_state.deadline,
                reload_on=reload_on,
                avoid=routing_state.failed_on,
            )
        except NoEngineError:
            self._lack(routing_state)
            return None
        except (LoadFailedError, QuarantinedError):
            raise
        except PlacementError as error:
            if self._clock() > routing_state.deadline:
                raise self._retries.timeout_error(routing_state.target) from error
            raise
        finally:
            now = self._clock()
            routing_state.loading += now - began
            routing_state.ticket.since = now  # until now it waited for the load, not for room

    async def _replicate(self, routing_state: RoutingState, version: Version, name: str) -> str | None:
        """Load the version on one more engine, because that is quicker than the queues of those that hold it.
        None: it had no slot."""
        engine = self._catalog.engines[name]
        began = self._clock()
        try:
            if await self._loader.open_replica(version, engine, deadline=routing_state.deadline):
                return name
        except StoreUnavailableError:  # those that hold it go on serving
            pass
        finally:
            routing_state.loading += self._clock() - began
        routing_state.no_room_on.add(name)
        routing_state.no_room_until = self._clock() + NO_ROOM_SECONDS
        return None

    def _lack(self, routing_state: RoutingState) -> Lack:
        """What the request waits for. Raises FlorinError if waiting is pointless: an engine that is down may
        return, one that is too small will not grow."""
        target = routing_state.target
        scores = self.scores(target, routing_state.requires)
        visible = [score for score in scores if not score.reason.startswith(PRIVATE)]
        if self.turns.limits.start_timeout and self._all_down(routing_state, visible):
            return Lack.ENGINE
        if any(s.cost is not None or s.reason in PASSING for s in scores):
            return Lack.ROOM if any(s.reason == FULL for s in scores) else Lack.OTHER
        hanging = self._hangs.hanging(target.base_model)
        if hanging:  # which may last for hours
            names = ", ".join(sorted(state.engine.name for state in hanging))
            raise FlorinError(
                "engine_hung",
                f"No engine can serve {target.label} now: {names} hang{'s' * (len(hanging) == 1)}.",
                retry_after=min(math.ceil(self._hangs.next_probe(state)) or 1 for state in hanging),
            )
        reasons = "; ".join(f"{s.engine}: {s.reason}" for s in visible) or "none is registered"
        raise FlorinError("no_engine", f"No engine can serve {target.label}: {reasons}.", retry_after=5)

    def _all_down(self, routing_state: RoutingState, visible: list[Score]) -> bool:
        """Whether none of these engines is up, and one that started could have the labels that the request
        requires."""
        engines = self._fleets.of(routing_state.target.base_model).engines
        views = [engines[score.engine] for score in visible]
        meets = not views or any(view.meets(routing_state.requires) for view in views)
        return meets and all(view.blocked in NOT_UP for view in views)
