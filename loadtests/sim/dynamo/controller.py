"""Target engines of each adapter, tick by tick: rendezvous hashing, min-cost flow, or at random."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, get_args

import networkx as nx

Algorithm = Literal["hrw", "mcf", "random"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
Loaded = Mapping[str, AbstractSet[str]]
"""Adapter → engines that hold it."""
COOLDOWN = 3
"""Ticks between reductions of an adapter's replicas."""
NEW, KEEP, OVERFLOW = 1000, 250, 10**12
"""Costs in the flow: of a replica on another engine, reward for one that stays, cost of one left out."""


def replica_counts(loads: Mapping[str, int], slots: int, engines: int) -> dict[str, int]:
    """Slots in proportion to load, at least one each; the adapters with the least get none if there are too
    few. Ties go by name."""
    ranked = sorted(loads.items(), key=lambda each: (-each[1], each[0]))[:slots]
    total = sum(load for _, load in ranked)
    raw = {name: float(min(engines, math.ceil(load / total * slots))) for name, load in ranked}
    if sum(raw.values()) <= slots:
        return {name: int(count) for name, count in raw.items()}
    scale = slots / sum(raw.values())
    scaled = {name: max(1.0, count * scale) for name, count in raw.items()}
    counts = {name: int(count) for name, count in scaled.items()}
    left = slots - sum(counts.values())
    for name in sorted(counts, key=lambda name: (counts[name] - scaled[name], name)):
        if left > 0 and counts[name] < engines:
            counts[name] += 1
            left -= 1
    return counts


class Controller:
    """Mutable: the targets, and what led to them."""

    def __init__(
        self,
        algorithm: Algorithm,
        slots: Mapping[str, int],
        order: Callable[[str], Sequence[str]],
        *,
        cooldown: int = COOLDOWN,
    ) -> None:
        """`slots`: of each engine. `order`: an adapter's rendezvous order of the engines."""
        self.targets: dict[str, list[str]] = {}
        self.active: set[str] = set()
        """Adapters with load. The others have one target, in case that a request comes."""
        self.changes = self.overflowed = 0
        """Targets added and removed; replicas without a place; so far."""
        self._algorithm, self._slots, self._order, self._cooldown = algorithm, slots, order, cooldown
        self._tick = 0
        self._reduced: dict[str, int] = {}
        """Adapter → tick in which its replicas were, or were first to be, reduced."""
        self._flow: dict[str, set[str]] = {}
        """The flow's last result. `targets` has besides those for which it found no place."""
        self._asked: dict[str, int] = {}
        """Replicas that it was asked for."""
        self._random = random.Random(0)

    def update(self, loads: Mapping[str, int], loaded: Loaded) -> None:
        """`loads`: all above 0."""
        self._tick += 1
        before = {(name, engine) for name, engines in self.targets.items() for engine in engines}
        known, self.active = sorted({*loads, *loaded}), set(loads)
        counts = replica_counts(loads, sum(self._slots.values()), len(self._slots))
        match self._algorithm:
            case "random":
                self._at_random(counts)
            case "hrw":
                self._by_rendezvous(counts, loaded, idle=[name for name in known if name not in loads])
            case "mcf":
                self._by_flow(counts, loaded, idle=[name for name in known if name not in loads])
        self._without_slot([name for name in known if name in loads and name not in counts], loaded)
        self.targets = {name: self.targets[name] for name in known}
        self._reduced = {name: tick for name, tick in self._reduced.items() if name in self.targets}
        after = {(name, engine) for name, engines in self.targets.items() for engine in engines}
        self.changes += len(before ^ after)

    def _at_random(self, counts: Mapping[str, int]) -> None:
        used: Counter[str] = Counter()
        self.targets = {}
        for name in sorted(counts):
            free = [engine for engine, slots in self._slots.items() if used[engine] < slots]
            free = free or list(self._slots)
            self.targets[name] = self._random.sample(free, min(counts[name], len(free)))
            used.update(self.targets[name])

    def _by_rendezvous(self, counts: Mapping[str, int], loaded: Loaded, *, idle: list[str]) -> None:
        """In the order of names. An adapter stays where it is, as far as there is room."""
        used = Counter(engine for engines in loaded.values() for engine in engines)
        for name in sorted(counts):
            mine, prior = loaded.get(name, set()), self.targets.get(name, [])
            free = [e for e in self._order(name) if used[e] - (e in mine) < self._slots[e]]
            free.sort(key=lambda engine: engine not in prior)
            replicas = self._steadied(name, counts[name])
            self.targets[name] = free[:replicas] or list(self._order(name)[:replicas])
            used.update(engine for engine in self.targets[name] if engine not in mine)
        for name in idle:
            self.targets[name] = list(self._order(name)[:1])
            self._reduced.pop(name, None)

    def _by_flow(self, counts: Mapping[str, int], loaded: Loaded, *, idle: list[str]) -> None:
        """All at once, but for adapters that want as many replicas as in the last tick."""
        replicas = {name: self._steadied(name, counts[name]) for name in sorted(counts)}
        for name in idle:
            replicas[name] = 1
            self._reduced.pop(name, None)
        settled = {n for n, replicas in replicas.items() if n in self._flow and self._asked[n] == replicas}
        flow, overflow = self._solve(replicas, settled)
        if overflow and settled and sum(self._slots.values()) > sum(replicas.values()) - overflow:
            again, less = self._solve(replicas, set())
            flow, overflow = (again, less) if less < overflow else (flow, overflow)
        self.overflowed += overflow
        self.targets |= {name: sorted(engines) for name, engines in flow.items()}
        self._without_slot([name for name in sorted(replicas) if name not in flow], loaded)
        self._flow, self._asked = flow, replicas

    def _solve(
        self, replicas: Mapping[str, int], settled: AbstractSet[str]
    ) -> tuple[dict[str, set[str]], int]:
        """Each adapter's engines, and how many replicas have none."""
        flow = {name: set(self._flow[name]) for name in settled}
        used = Counter(engine for engines in flow.values() for engine in engines)
        graph = nx.DiGraph()
        for engine, slots in self._slots.items():
            graph.add_edge(("engine", engine), "sink", capacity=slots - used[engine], weight=0)
        for name in sorted(replicas):
            missing = replicas[name] - len(flow.get(name, ()))
            if missing <= 0:
                continue
            graph.add_edge("source", ("adapter", name), capacity=missing, weight=0)
            graph.add_edge(("adapter", name), "sink", capacity=missing, weight=OVERFLOW)
            for place, engine in enumerate(self._order(name)):
                if engine not in flow.get(name, ()):
                    keeps = engine in self._flow.get(name, ())
                    weight = place - KEEP if keeps else place + NEW
                    graph.add_edge(("adapter", name), ("engine", engine), capacity=1, weight=weight)
        if "source" not in graph:
            return flow, 0
        overflow = 0
        for node, sent in nx.max_flow_min_cost(graph, "source", "sink").items():
            if node[0] == "adapter":
                overflow += sent.pop("sink")
                if engines := {engine for (_, engine), amount in sent.items() if amount}:
                    flow.setdefault(node[1], set()).update(engines)
        return flow, overflow

    def _without_slot(self, names: list[str], loaded: Loaded) -> None:
        """Those for which there was no place stay where they are warm, or get one target."""
        for name in names:
            self.targets.setdefault(name, [])
        used = Counter(e for n, engines in self.targets.items() if n not in names for e in engines)
        for name in names:
            if self._algorithm == "random":
                self.targets[name] = self._random.sample(list(self._slots), 1)
                continue
            order = self._order(name)
            warm = [engine for engine in self.targets[name] if engine in loaded.get(name, ())]
            free = [engine for engine in order if used[engine] < self._slots[engine]]
            self.targets[name] = warm or list((free or order)[:1])
            used.update(self.targets[name])

    def _steadied(self, name: str, desired: int) -> int:
        """Replicas after the cooldown's say."""
        current = len(self.targets.get(name, ()))
        if desired >= current or not self._cooldown:
            self._reduced.pop(name, None)
            return desired
        last = self._reduced.get(name)
        if last is not None and self._tick - last < self._cooldown:
            return current
        self._reduced[name] = self._tick
        return current if last is None else desired
