"""The fleet as it would be after some moves, and which further moves are possible there."""

from __future__ import annotations

from adapters.model import SlotState, has_labels
from adapters.placement.planned_fleet import FleetSnapshot, Move, PlanLimits, PlannedEngine, PlannedVersion

ON_GPU = (SlotState.RESIDENT, SlotState.LOADING, SlotState.LEAVING, SlotState.LOST)
"""States that hold a GPU slot."""


class Draft:
    """The fleet as it will be after the moves so far. Mutable: `record` changes everything but
    the facts, `targets` counts its searches."""

    def __init__(self, snapshot: FleetSnapshot, limits: PlanLimits) -> None:
        self.limits = limits
        self.engines = {e.name: e for e in sorted(snapshot.engines, key=lambda e: e.name)}
        self.versions = {v.name: v for v in sorted(snapshot.versions, key=lambda v: v.name)}
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

    def record(self, move: Move) -> None:
        self.moves.append(move)
        if move.kind == "drop":
            self.dropped.add((move.engine, move.version))
            self.replicas[move.version].discard(move.engine)
            if self.engines[move.engine].held[move.version].state in ON_GPU:
                self.free[move.engine] += 1
            return
        victim = None if self.free[move.engine] > 0 else self.victim(self.engines[move.engine])
        if victim is None:
            self.free[move.engine] -= 1
        else:
            self.dropped.add((move.engine, victim))
            if victim in self.replicas:
                self.replicas[victim].discard(move.engine)
        self.loading.add(move.engine)
        self.replicas[move.version].add(move.engine)

    def proven(self, version: PlannedVersion) -> set[str]:
        """The replicas that count for its minimum: an engine into whose weights it is merged does once it was
        compared with one that loads it, for which that must have happened."""
        return {
            name
            for name in self.replicas[version.name]
            if self.engines[name].only is None
            or ((placed := self.engines[name].held.get(version.name)) and placed.state is SlotState.RESIDENT)
        }

    # -- what is possible

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
        return name if idle or left >= max(1, version.min_replicas) else None

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

    def targets(self, version: PlannedVersion, *, evict: bool, trial: bool = False) -> list[PlannedEngine]:
        """Engines that can load the version now, the best first: those on trial, or the others."""
        self.searches += 1
        if self.searches > self.limits.searches:
            return []
        replicas = self.replicas[version.name]
        domains = [self.engines[name].domain for name in replicas]
        candidates = []
        for engine in self.engines.values():
            cached = version.name in engine.held
            if (
                not (engine.open and engine.serves and engine.slots > 0)
                or engine.only not in (None, version.name)
                or engine.trial is not trial
                or engine.name in replicas
                or engine.name in self.loading
                or (engine.only is None and not takes(engine, version))
                or not meets(engine, version)
                or (cached and engine.held[version.name].state is not SlotState.CACHED)
                or (engine.name, version.name) in self.dropped
                or (not cached and engine.since_load * 1000 * self.limits.stalled < engine.load_ms)
            ):
                continue
            full = self.free[engine.name] < 1
            if full and not (evict and self.victim(engine) is not None):
                continue
            order = (
                domains.count(engine.domain), full, not cached, engine.weight, engine.requests, engine.name,
            )  # fmt: skip
            candidates.append((order, engine))
        return [engine for _, engine in sorted(candidates, key=lambda pair: pair[0])]

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
            and self.engines[name].only is None
        ]
        idle.sort(key=lambda e: (-domains.count(e.domain), -e.weight, -e.requests, e.name))
        needed = len(set(domains)) <= version.min_replicas
        return [e.name for e in idle if not (needed and domains.count(e.domain) == 1)]


def meets(engine: PlannedEngine, version: PlannedVersion) -> bool:
    return has_labels(engine.labels, version.requires)


def takes(engine: PlannedEngine, version: PlannedVersion) -> bool:
    """Whether an engine that loads versions can apply this one."""
    return version.rank <= engine.max_rank and version.release <= engine.release
