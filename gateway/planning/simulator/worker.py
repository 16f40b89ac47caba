"""One gateway worker: from a request to an engine that holds its adapter, as in `gateway.routing.router`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from adapters.model import Version
from adapters.placement.residency import Residency
from adapters.placement.scheduling.costs import EngineCosts
from adapters.placement.scheduling.prefix_cache import NOTHING_SEEN, Seen
from adapters.placement.scheduling.scheduler import Scheduler
from adapters.placement.scheduling.view import Action, Ask, EngineView, Fleet, Pick
from adapters.store.protocol.loads import Load, Loads, bit_of
from adapters.store.protocol.placement import ClaimResult, Touch
from gateway.admission.fair_queue.fleet_queue import Report
from gateway.planning.simulator.claim_rules import PlacementRules
from gateway.planning.simulator.contestant import Contestant
from gateway.planning.simulator.engine_model import EngineModel
from gateway.planning.simulator.event_queue import Events
from gateway.planning.simulator.fair_turns import Turns
from gateway.planning.simulator.simulated_request import Request, Tier
from gateway.routing.prefixes import PrefixMemory

CLAIM_MS, LEASE_MS, GRACE_MS = 10_000, 5_000, 1_000
RETRY = 0.1
"""Seconds between claims while every slot is in use."""
NO_ROOM = 1.0
"""Seconds during which a request tries no replica on an engine that had no slot for it."""
RENEW = 1.5
PROBE_PROMPT, PROBE_OUTPUT = 20, 4
_TIERS = {Action.SERVE: Tier.GPU, Action.ACTIVATE: Tier.CPU, Action.LOAD: Tier.DISK, Action.JOIN: Tier.DISK}


@dataclass(slots=True, eq=False)
class Wait:
    """Requests that wait for one version to become resident: on one engine, for a replica, or on any."""

    version: str
    engine: str = ""
    requests: list[Request] = field(default_factory=list)
    loading: str = ""
    """Engine on which this worker is loading it."""
    claiming: bool = False
    """A claim is due."""


class Worker:
    """Knows of the other workers only what `exchange` and the mirror tell it."""

    def __init__(
        self,
        *,
        name: str,
        contestant: Contestant,
        engines: dict[str, EngineModel],
        residency: Residency,
        rules: PlacementRules,
        events: Events,
        board: dict[str, Report] | None = None,
    ) -> None:
        """`board`: where workers find each other's fair queues; None: there are none."""
        self.name = name
        self._contestant, self._engines, self._residency = contestant, engines, residency
        self._rules, self._events = rules, events
        self.scheduler: Scheduler = contestant.scheduler()
        self.views = {
            e.name: EngineView(
                e.name,
                e.slots,
                e.cpu_slots,
                e.max_rank,
                costs=EngineCosts.merged() if e.serves else EngineCosts(),
                held=residency.held(e.name),
                serves=e.serves and _version(e.serves).id,
                labels=e.labels,
            )
            for e in engines.values()
        }
        self._merged = {e.serves: _version(e.serves) for e in engines.values() if e.serves}
        self._fleet = Fleet(self.views, residency.places)
        self._waits: dict[str, dict[str, Wait]] = {}
        """By version and engine."""
        self._no_room: dict[Request, tuple[float, set[str]]] = {}
        self._used: dict[tuple[str, str], float] = {}
        """(engine, version) → time of last use, since the last flush."""
        self._reported: dict[tuple[str, str], float] = {}
        """(engine, version) in use → time of the last report."""
        self._loads: dict[str, Load] = {}
        """Requests of this worker, as last told to the others."""
        self._heard: set[str] = set()
        """Engines with requests of others, as last heard."""
        self.prefixes = PrefixMemory()
        self.turns = board if board is None else self._open_queue(board)

    def __repr__(self) -> str:
        return f"<Worker {self.name}, {len(self._waits)} waits>"

    def _open_queue(self, board: dict[str, Report]) -> Turns:
        return Turns(
            self.name,
            board,
            views=self.views,
            engines=self._engines,
            holders=self._residency.holders,
            pick=self._pick,
            place=self.place,
            events=self._events,
        )

    # -- requests

    def arrive(self, request: Request) -> None:
        if self.turns is None:
            self.place(request)
        else:
            self.turns.arrive(request)

    def place(self, request: Request) -> None:
        """Send the request to an engine, or let it wait until one holds its adapter."""
        if request.outcome is not None:
            return
        pick = self._pick(request)
        if pick is None and self.turns is not None:
            self.turns.give_back(request)
            return
        if pick is None:
            self._events.at(self._events.now + RETRY, self.place, request)
            return
        if not self._contestant.claims:
            request.tier = self._engines[pick.engine].tier(request.adapter)
            self.send(request, pick.engine)
            return
        if request.tier is Tier.GPU:
            request.tier = _TIERS[pick.action]
        if pick.action is Action.SERVE:
            self.send(request, pick.engine)
        elif not self._residency.holders(request.adapter):
            self._wait(request, "", pick)
        elif self._contestant.replicas:
            self._wait(request, pick.engine, pick)
        else:
            self._events.at(self._events.now + RETRY, self.place, request)

    def send(self, request: Request, name: str) -> None:
        engine = self._engines[name]
        if self._contestant.claims and request.adapter and request.adapter not in engine.registered:
            self._events.at(self._events.now + RETRY / 2, self.place, request)  # it answers "no such model"
            return
        self._no_room.pop(request, None)
        request.engine = name
        view = self.views[name]
        now, seen = self._events.now, self._seen(request).get(name)
        self.prefixes.note(request.remembered, name, now, seen)
        request.seen, request.pending = seen, request.prompt
        if seen is not None:
            request.pending = view.prefixes.uncached(request.prompt, seen)
        view.sent(request.adapter, request.pending)
        self._use(name, request.adapter)
        engine.submit(request)

    def answering(self, request: Request) -> None:
        view = self.views[request.engine]
        view.answering(request.pending)
        if request.seen is not None and request.first >= 0:
            view.prefixes.answered(request.seen, prompt=request.prompt, cached=request.saved)

    def ended(self, request: Request) -> None:
        """The request has left its engine."""
        self.views[request.engine].ended(request.adapter)
        self._use(request.engine, request.adapter)
        if self.turns is not None:
            self.turns.end(request, answered=request.first >= 0)

    def give_up(self, request: Request) -> None:
        """Its deadline passed before it was sent."""
        self._no_room.pop(request, None)
        if self.turns is not None:
            self.turns.end(request, answered=False)

    def _pick(self, request: Request) -> Pick | None:
        now = self._events.now
        until, no_room = self._no_room.get(request, (0.0, ()))
        if no_room and until <= now:
            del self._no_room[request]
            no_room = ()
        ask = Ask(
            request.adapter,
            request.rank,
            request.prompt,
            self._seen(request),
            no_room_on=no_room,
            requires=request.requires,
            document=self._merged.get(request.adapter),
            yields=self.turns is not None and self.turns.yields(request),
        )
        return self.scheduler.pick(ask, self._fleet, now)

    def _seen(self, request: Request) -> Mapping[str, Seen]:
        if not self._contestant.affinity:
            return NOTHING_SEEN
        return self.prefixes.seen(request.remembered, self._events.now)

    # -- loads

    def _wait(self, request: Request, engine: str, pick: Pick) -> None:
        waits = self._waits.setdefault(request.adapter, {})
        wait = waits.get(engine)
        if wait is None:
            wait = waits[engine] = Wait(request.adapter, engine)
        wait.requests.append(request)
        if wait.engine or wait.loading:
            self.views[wait.engine or wait.loading].wait()
        if not wait.loading and not wait.claiming:
            self._claim(wait, pick)

    def heard(self, version: str) -> None:
        """The placement of the version has changed."""
        for wait in list(self._waits.get(version, {}).values()):
            self._again(wait)

    def _retry(self, wait: Wait) -> None:
        wait.claiming = False
        waiting = [r for r in wait.requests if r.outcome is None]
        if not waiting:
            self._end(wait)
            return
        if wait.engine:
            self._claim(wait, None)
            return
        pick = self._pick(waiting[0])
        if pick is None:
            self._later(wait)
        elif pick.action is Action.SERVE:
            self._end(wait, pick.engine)
        else:
            self._claim(wait, pick)

    def _later(self, wait: Wait) -> None:
        wait.claiming = True
        self._events.at(self._events.now + RETRY, self._again, wait)

    def _again(self, wait: Wait) -> None:
        if wait.claiming:
            self._retry(wait)

    def _claim(self, wait: Wait, pick: Pick | None) -> None:
        name = wait.engine or (pick.engine if pick else "")
        engine = self._engines[name]
        self.flush()
        claim = self._rules.claim(
            wait.version,
            name,
            slots=engine.slots,
            cpu_slots=engine.cpu_slots if self._contestant.cpu_tier else 0,
            owner=self.name,
            ttl_ms=CLAIM_MS,
            ignore=_unfit(self._engines, wait.requests[0].requires),
            replica=bool(wait.engine),
            grace_ms=GRACE_MS,
        )
        for victim in claim.unload:
            engine.unload(victim)
        if claim.victim and not self._contestant.cpu_tier and claim.victim not in claim.unload:
            engine.unload(claim.victim)
        match claim.result:
            case ClaimResult.RESIDENT | ClaimResult.ACTIVATED:
                self._end(wait, claim.engine)
            case ClaimResult.CLAIMED:
                self._load(wait, engine)
            case ClaimResult.LOADING if wait.engine == claim.engine:  # by another worker
                self._later(wait)
            case _ if wait.engine:
                until = self._events.now + NO_ROOM
                for request in wait.requests:
                    self._no_room.setdefault(request, (until, set()))[1].add(wait.engine)
                self._end(wait)
            case _:
                self._later(wait)

    def _load(self, wait: Wait, engine: EngineModel) -> None:
        wait.loading = engine.name
        for _ in wait.requests if not wait.engine else ():
            self.views[engine.name].wait()
        rank = wait.requests[0].rank
        engine.load(wait.version, rank, lambda: self._loaded(wait, engine, rank))

    def _loaded(self, wait: Wait, engine: EngineModel, rank: int) -> None:
        left = self._contestant.probes
        if not left:
            self._confirm(wait)
            return

        def probed() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._confirm(wait)

        for _ in range(left):
            now = self._events.now
            engine.submit(Request(now, "", wait.version, rank, PROBE_PROMPT, PROBE_OUTPUT, done=probed))

    def _confirm(self, wait: Wait) -> None:
        engine = wait.loading
        if self._rules.confirm(wait.version, engine, owner=self.name, grace_ms=GRACE_MS):
            self._end(wait, engine)
        else:
            self._stop_waiting(wait)
            wait.loading = ""
            self._later(wait)

    def _end(self, wait: Wait, engine: str = "") -> None:
        """Send those that wait to the engine, or without one decide anew for each."""
        waits = self._waits[wait.version]
        del waits[wait.engine]
        if not waits:
            del self._waits[wait.version]
        self._stop_waiting(wait)
        for request in wait.requests:
            if request.outcome is None and engine:
                self.send(request, engine)
            elif request.outcome is None:
                self._events.at(self._events.now, self.place, request)

    def _stop_waiting(self, wait: Wait) -> None:
        name = wait.engine or wait.loading
        for _ in wait.requests if name else ():
            self.views[name].wait(-1)

    # -- what the others learn

    def _use(self, engine: str, version: str) -> None:
        if version and self._contestant.claims:
            self._used[engine, version] = self._events.now

    def flush(self, *, exchange: bool = False) -> None:
        """Report uses and leases, so that no claim takes the slot of a version in use here. With `exchange`,
        report the requests in flight, too, and hear of the other workers'."""
        now = self._events.now
        for key, reported in self._reported.items():
            if now - reported > RENEW:
                self._used.setdefault(key, reported)
        touches: list[Touch] = []
        for (engine, version), used in self._used.items():
            in_flight = self.views[engine].uses.get(version, 0)
            touches.append(Touch(engine, version, int((now - used) * 1000), in_flight))
            if in_flight:
                self._reported[engine, version] = now
            else:
                self._reported.pop((engine, version), None)
        self._used.clear()
        if exchange:
            self._loads = {name: _load(view) for name, view in self.views.items() if view.in_flight}
            self._loads |= self.prefixes.report(now)
        if touches or exchange:
            others = self._rules.touch(self.name, touches, ttl_ms=LEASE_MS, loads=self._loads).loads
            if exchange:
                self._hear(others)
                if self.turns is not None:
                    self.turns.exchange()

    def _hear(self, others: Loads) -> None:
        self.prefixes.heard(others, self._events.now)
        others = {name: load for name, load in others.items() if name in self.views}
        for name in others.keys() | self._heard:
            view, load = self.views[name], others.get(name, Load())
            view.heard(load.in_flight, load.pending, load.distinct(_load(view).versions))
        self._heard = set(others)


def _version(adapter: str) -> Version:
    """The only one of the adapter, for the filter of merged engines, which compares ids."""
    return Version(adapter, 1, "", adapter, "", "", 0, 0, "", 0)


def _load(view: EngineView) -> Load:
    versions = 0
    for version in view.uses:
        versions |= bit_of(version)
    return Load(view.in_flight, view.pending, versions)


def _unfit(engines: Mapping[str, EngineModel], requires: Mapping[str, str]) -> list[str]:
    """Engines that lack a label."""
    if not requires:
        return []
    return [
        name
        for name, engine in engines.items()
        if any(engine.labels.get(label) != value for label, value in requires.items())
    ]
