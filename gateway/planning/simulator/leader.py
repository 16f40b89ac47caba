"""The leader's planner, as in `adapters.reconcile.rebalancer`: sample the leases, plan, act."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from adapters.placement.demand import Demand
from adapters.placement.planned_fleet import (
    FleetSnapshot,
    Kind,
    Move,
    PlacedVersion,
    PlannedEngine,
    PlannedVersion,
)
from adapters.placement.planner import plan
from adapters.placement.residency import Residency
from adapters.placement.scheduling.view import EngineView
from adapters.store.protocol.placement import ClaimResult
from gateway.planning.simulator.claim_rules import PlacementRules
from gateway.planning.simulator.engine_model import EngineModel
from gateway.planning.simulator.event_queue import Events

INTERVAL = 2.0
"""Seconds between plans, as is the default of FLORIN_PLACEMENT_INTERVAL."""
CAPACITY = 64
"""Requests in flight that an engine serves well, as is the default of FLORIN_ENGINE_CAPACITY."""
OWNER = "leader"
CLAIM_MS, GRACE_MS = 10_000, 1_000
TYPICAL_RANK = 16
BASE = "engine/"


@dataclass(frozen=True, slots=True)
class Known:
    """What the catalog knows of a version."""

    rank: int
    requires: Mapping[str, str]


class Leader:
    """Call `tick` every INTERVAL."""

    def __init__(
        self,
        *,
        engines: Mapping[str, EngineModel],
        versions: Mapping[str, Known],
        views: Mapping[str, EngineView],
        residency: Residency,
        rules: PlacementRules,
        events: Events,
    ) -> None:
        """`views`: those of the leader's worker."""
        self.moves: Counter[Kind] = Counter()
        """Carried out."""
        self.last_move = 0.0
        self._engines, self._versions, self._views = engines, versions, views
        self._residency, self._rules, self._events = residency, rules, events
        self._demand = Demand()
        self._loads: dict[str, float] = {}
        """Engine → when its last known load was in progress."""
        self._busy: set[str] = set()
        """Engines on which moves are being carried out."""

    def __repr__(self) -> str:
        return f"<Leader {dict(self.moves)}>"

    def tick(self) -> None:
        moves = plan(self._snapshot(self._sample()))
        by_engine: dict[str, deque[Move]] = defaultdict(deque)
        for move in moves:
            if move.engine not in self._busy:
                by_engine[move.engine].append(move)
        self._busy |= by_engine.keys()
        for here in by_engine.values():
            self._carry_out(here, here[0].engine)

    # -- the snapshot

    def _sample(self) -> dict[str, dict[str, int]]:
        """Engine → version → requests in flight."""
        now = self._events.now
        leases = {name: self._rules.leases(name) for name in self._engines}
        in_flight: dict[str, float] = defaultdict(float)
        for name, here in leases.items():
            for version, count in here.items():
                in_flight[version] += count
            in_flight[f"{BASE}{name}"] = max(0, self._engines[name].in_flight - sum(here.values()))
            if self._residency.held(name).loading:
                self._loads[name] = now
        self._demand.sample(in_flight, now)
        return leases

    def _snapshot(self, leases: Mapping[str, Mapping[str, int]]) -> FleetSnapshot:
        engines = tuple(self._engine(engine, leases[engine.name]) for engine in self._engines.values())
        names = {name for engine in engines for name in engine.held} | self._demand.versions()
        return FleetSnapshot(engines, tuple(self._planned(sorted(names & self._versions.keys()))))

    def _engine(self, engine: EngineModel, leases: Mapping[str, int]) -> PlannedEngine:
        name = engine.name
        ages = self._rules.recency(name)
        return PlannedEngine(
            name,
            engine.slots,
            engine.max_rank,
            domain=name,
            labels=engine.labels,
            open=name not in self._busy,
            capacity=CAPACITY,
            base_load=self._demand.mean(f"{BASE}{name}"),
            load_ms=self._views[name].costs.load(TYPICAL_RANK),
            since_load=self._events.now - self._loads.get(name, -math.inf),
            held={
                version: PlacedVersion(state, version in leases, ages.get(version, math.inf) / 1000)
                for version, state in self._residency.placed(name).items()
            },
        )

    def _planned(self, names: Iterable[str]) -> Iterable[PlannedVersion]:
        demand = self._demand
        for name in names:
            known = self._versions[name]
            peak = demand.peak(name) if demand.knows_the_past else math.inf
            yield PlannedVersion(name, known.rank, demand.mean(name), peak, known.requires)

    # -- moves

    def _carry_out(self, moves: deque[Move], engine: str) -> None:
        """In order. Stops at the first that fails."""
        while moves:
            move = moves.popleft()
            if move.kind == "drop":
                if not self._drop(move):
                    break
                self._done(move)
            else:
                self._load(move, moves)
                return
        self._busy.discard(engine)

    def _done(self, move: Move) -> None:
        self.moves[move.kind] += 1
        self.last_move = self._events.now

    def _drop(self, move: Move) -> bool:
        if move.version in self._rules.leases(move.engine):
            return False
        self._rules.unplace(move.engine, move.version)
        self._engines[move.engine].unload(move.version)
        return True

    def _load(self, move: Move, then: deque[Move]) -> None:
        engine, known = self._engines[move.engine], self._versions[move.version]
        self._loads[engine.name] = self._events.now
        claim = self._rules.claim(
            move.version,
            engine.name,
            slots=engine.slots,
            cpu_slots=engine.cpu_slots,
            owner=OWNER,
            ttl_ms=CLAIM_MS,
            ignore=unfit(self._engines, known.requires),
            replica=True,
            grace_ms=GRACE_MS,
        )
        for victim in claim.unload:
            engine.unload(victim)
        if claim.result is ClaimResult.CLAIMED:
            engine.load(move.version, known.rank, partial(self._loaded, move, then))
            return
        if claim.result in {ClaimResult.ACTIVATED, ClaimResult.RESIDENT}:
            self._done(move)
        else:
            then.clear()
        self._carry_out(then, engine.name)

    def _loaded(self, move: Move, then: deque[Move]) -> None:
        if self._rules.confirm(move.version, move.engine, owner=OWNER, grace_ms=GRACE_MS):
            self._done(move)
        else:
            then.clear()
        self._carry_out(then, move.engine)


def unfit(engines: Mapping[str, EngineModel], requires: Mapping[str, str]) -> list[str]:
    """Engines that lack a label."""
    if not requires:
        return []
    return [
        name
        for name, engine in engines.items()
        if any(engine.labels.get(label) != value for label, value in requires.items())
    ]
