"""The fleet as it would be after some moves, and which further moves are possible there."""

from __future__ import annotations

import math
import statistics

from adapters.model import SlotState
from adapters.placement.planned_fleet import FleetSnapshot, Move, PlanLimits, PlannedEngine, PlannedVersion

GROW = 0.7
SETTLED = 0.6
"""Fractions of an engine's capacity: see `planner`. SETTLED leaves a margin for noise of ±10 %."""
RELIEF = 0.9
"""In overload, a new replica's engine must be less busy than this fraction of the busiest that holds it."""
BIG = 2.0
"""A rank of this many times the fleet's median belongs to the pool of big ranks: a batch costs as much as its
highest rank."""
ON_GPU = (SlotState.RESIDENT, SlotState.LOADING, SlotState.LEAVING, SlotState.LOST)
"""States that hold a GPU slot."""


class Draft:
    """The fleet as it will be after the moves so far. Mutable: `record` changes everything but
    the facts, `targets` counts its searches."""

    def __init__(self, snapshot: FleetSnapshot, limits: PlanLimits) -> None:
        self.limits = limits
        self.engines = {e.name: e for e in sorted(snapshot.engines, key=lambda e: e.name)}
        order = sorted(snapshot.versions, key=lambda v: (-v.demand, v.name))
        self.versions = {v.name: v for v in order}
        self.moves: list[Move] = []
        self.searches = 0
        self.loading: set[str] = {
            e.name
            for e in self.engines.values()
            if any(p.state is SlotState.LOADING for p in e.held.values())
        }
        """Engines that load something, which they do one at a time."""
        self.replicas: dict[str, set[str]] = {v: set() for v in self.versions}
        """Version → engines that serve it, or soon will."""
        self.free: dict[str, int] = {}
        for engine in self.engines.values():
            taken = [v for v, placed in engine.held.items() if placed.state in ON_GPU]
            self.free[engine.name] = engine.slots - len(taken)
            for version in taken if engine.serves else ():
                if version in self.replicas and engine.held[version].state is not SlotState.LEAVING:
                    self.replicas[version].add(engine.name)
        self.dropped: set[tuple[str, str]] = set()
        self.evictable: dict[str, list[str]] = {}
        """Engine → what claims may evict there, in their order; filled when first needed."""
        self.load = {e.name: e.base_load for e in self.engines.values()}
        for version in self.versions:
            self._spread(version, 1)
        ranks = [v.rank for v in self.versions.values()]
        self.big_rank = BIG * statistics.median(ranks) if ranks else math.inf
        self.with_big = {
            e.name
            for e in self.engines.values()
            if any(v in self.versions and self.is_big(self.versions[v]) for v in e.held)
        }
        """Engines with versions of big rank."""

    def _spread(self, name: str, sign: int) -> None:
        """Add (1) or take away (-1) a version's demand on its engines."""
        replicas = self.replicas[name]
        for engine in replicas:
            self.load[engine] += sign * self.versions[name].demand / len(replicas)

    def record(self, move: Move) -> None:
        self.moves.append(move)
        self._spread(move.version, -1)
        if move.kind == "drop":
            self.dropped.add((move.engine, move.version))
            self.replicas[move.version].discard(move.engine)
            if self.engines[move.engine].held[move.version].state in ON_GPU:
                self.free[move.engine] += 1
        else:
            victim = None if self.free[move.engine] > 0 else self.victim(self.engines[move.engine])
            if victim is not None:
                self._spread(victim, -1)
                self.replicas[victim].discard(move.engine)
                self.dropped.add((move.engine, victim))
                self._spread(victim, 1)
            else:
                self.free[move.engine] -= 1
            self.loading.add(move.engine)
            self.replicas[move.version].add(move.engine)
        self._spread(move.version, 1)

    # -- what is possible

    def is_big(self, version: PlannedVersion) -> bool:
        return version.rank >= self.big_rank

    def may_hold(self, engine: PlannedEngine, version: PlannedVersion) -> bool:
        """By its labels, its rank, and its operator."""
        return version.rank <= engine.max_rank and meets(engine, version)

    def victim(self, engine: PlannedEngine) -> str | None:
        """What a claim would evict there: the least recently used version that is neither in use nor
        pinned. None: nothing, or something that is needed."""
        if engine.name not in self.evictable:
            self.evictable[engine.name] = self._evictable(engine)
        order = self.evictable[engine.name]
        name = next((name for name in order if (engine.name, name) not in self.dropped), None)
        if name is None:
            return None
        version = self.versions.get(name)
        if engine.held[name].state is SlotState.LEAVING:
            return None  # a request waits for its slot
        if version is None:
            return name
        idle = engine.held[name].idle >= self.limits.idle and version.min_replicas == 0
        left = len(self.replicas[name] - {engine.name})
        enough = left >= max(1, version.min_replicas) and self.settled_without(version, engine.name)
        return name if enough or idle else None

    def _evictable(self, engine: PlannedEngine) -> list[str]:
        order = [
            (placed.state is not SlotState.LOST, placed.state is not SlotState.LEAVING, -placed.idle, name)
            for name, placed in engine.held.items()
            if placed.state in ON_GPU
            and placed.state is not SlotState.LOADING
            and not placed.leased
            and not ((known := self.versions.get(name)) and known.pinned)
        ]
        return [name for *_, name in sorted(order)]

    def targets(self, version: PlannedVersion, *, evict: bool, relieve: bool = False) -> list[PlannedEngine]:
        """Engines that can load the version now, the best first. `relieve`: only where that helps."""
        self.searches += 1
        if self.searches > self.limits.searches:
            return []
        replicas = self.replicas[version.name]
        share = version.demand / (len(replicas) + 1)
        busiest = max((self.busy(name) for name in replicas), default=math.inf)
        domains = [self.engines[name].domain for name in replicas]
        candidates = []
        for engine in self.engines.values():
            cached = version.name in engine.held
            if (
                not (engine.open and engine.serves and engine.slots > 0)
                or engine.name in replicas
                or engine.name in self.loading
                or not self.may_hold(engine, version)
                or (cached and engine.held[version.name].state is not SlotState.CACHED)
                or (engine.name, version.name) in self.dropped
                or (not cached and engine.since_load * 1000 * self.limits.stalled < engine.load_ms)
                or (relieve and self.busy(engine.name, share) > max(GROW, RELIEF * busiest))
            ):
                continue
            full = self.free[engine.name] < 1
            if full and not (evict and self.victim(engine) is not None):
                continue
            misfit = self.is_big(version) != (engine.name in self.with_big)
            order = (
                domains.count(engine.domain), misfit, full, not cached, engine.weight,
                self.busy(engine.name), engine.name,
            )  # fmt: skip
            candidates.append((order, engine))
        return [engine for _, engine in sorted(candidates, key=lambda pair: pair[0])]

    def busy(self, name: str, more: float = 0.0) -> float:
        """The engine's load, with so many requests more, as a fraction of its capacity."""
        return (self.load[name] + more) / self.engines[name].capacity

    def room(self, version: PlannedVersion) -> float:
        """Requests in flight that its replicas can take, besides what others ask of their engines."""
        replicas = self.replicas[version.name]
        own = version.demand / len(replicas) if replicas else 0.0
        engines = (self.engines[name] for name in replicas)
        return sum(max(0.0, e.capacity - self.load[e.name] + own) for e in engines)

    def crowded(self, version: PlannedVersion) -> bool:
        return version.demand > GROW * self.room(version)

    def droppable(self, version: PlannedVersion) -> list[str]:
        """Its idle replicas, in the order in which to drop them: those that remain span as many failure
        domains as its minimum requires, on the cheapest GPUs possible."""
        replicas = self.replicas[version.name]
        domains = [self.engines[name].domain for name in replicas]
        idle = [
            self.engines[name]
            for name in replicas
            if (placed := self.engines[name].held.get(version.name)) is not None
            and placed.state is SlotState.RESIDENT
            and not placed.leased
        ]
        idle.sort(
            key=lambda e: (
                -domains.count(e.domain),
                self.is_big(version) == (e.name in self.with_big),
                -e.weight,
                -self.busy(e.name),
                e.name,
            )
        )
        needed = len(set(domains)) <= version.min_replicas
        return [e.name for e in idle if not (needed and domains.count(e.domain) == 1)]

    def settled_without(self, version: PlannedVersion, name: str) -> bool:
        """Whether the version's other engines stay calm at its peak when this replica is gone."""
        others = self.replicas[version.name] - {name}
        now, then = version.demand / (len(others) + 1), max(version.demand, version.peak) / len(others)
        return all(
            self.load[other] - now + then <= SETTLED * self.engines[other].capacity for other in others
        )


def meets(engine: PlannedEngine, version: PlannedVersion) -> bool:
    return all(engine.labels.get(label) == value for label, value in version.requires.items())
