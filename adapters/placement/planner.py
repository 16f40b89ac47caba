"""Where versions should be in a few seconds: replicas before callers wait, and fewer when they are idle.

`plan` is pure. Its unit of demand is the mean number of requests in flight (by Little's law the engine time
that is asked for each second), which is assumed to spread evenly over the engines that hold a version. A
version gets another replica above GROW of what its engines can give it, and loses one below SHRINK. Neither
move should cause the next: a replica is opened only where the engine stays below GROW with it (or, in
overload, clearly below those that hold the version now), and closed only if the others stay below SETTLED
without it. So plans come to rest while the demand is constant.
"""

from __future__ import annotations

from collections.abc import Iterator

from adapters.model import SlotState
from adapters.placement.plan_draft import Draft, meets
from adapters.placement.planned_fleet import FleetSnapshot, Move, PlanLimits, PlannedVersion

SHRINK = 0.4
"""Fraction of an engine's capacity; `plan_draft` has the others."""
_LIMITS = PlanLimits()


def plan(snapshot: FleetSnapshot, limits: PlanLimits = _LIMITS) -> tuple[Move, ...]:
    """The next moves, the most urgent first. The same snapshot always gives the same plan."""
    draft = Draft(snapshot, limits)
    for step in (_misplaced, _surplus, _minimum, _growth, _shrinkage, _prefetch):
        for move in step(draft):
            if len(draft.moves) >= limits.moves:
                return tuple(draft.moves)
            draft.record(move)
    return tuple(draft.moves)


# -- the steps, by urgency. Each looks at the draft anew after each of its moves.


def _misplaced(draft: Draft) -> Iterator[Move]:
    """What its owner no longer allows there."""
    for engine in draft.engines.values():
        for name, placed in sorted(engine.held.items()):
            version = draft.versions.get(name)
            if version is None or placed.leased or placed.state is SlotState.LOADING:
                continue
            if not meets(engine, version):
                yield Move("drop", name, engine.name, "its tenant requires other labels")


def _surplus(draft: Draft) -> Iterator[Move]:
    for version in draft.versions.values():
        most = version.max_replicas
        if most is not None and len(draft.replicas[version.name]) > most:
            for engine in draft.droppable(version)[:1]:
                have = len(draft.replicas[version.name])
                yield Move("drop", version.name, engine, f"{have} replicas, at most {most} allowed")


def _minimum(draft: Draft) -> Iterator[Move]:
    for version in draft.versions.values():
        if version.min_replicas:
            yield from _missing(draft, version)


def _missing(draft: Draft, version: PlannedVersion) -> Iterator[Move]:
    replicas, least = draft.replicas[version.name], version.min_replicas
    while len(replicas) < least and (targets := draft.targets(version, evict=True)):
        reason = f"{len(replicas)} replicas, at least {least} wanted"
        yield Move("replicate", version.name, targets[0].name, reason)
    domains = {draft.engines[name].domain for name in replicas}
    if len(domains) < least <= len(replicas) and _may_grow(version, len(replicas)):
        for target in draft.targets(version, evict=False)[:1]:
            if target.domain not in domains:
                reason = f"its {len(replicas)} replicas are on {len(domains)} hosts"
                yield Move("replicate", version.name, target.name, reason)


def _growth(draft: Draft) -> Iterator[Move]:
    for version in draft.versions.values():
        replicas = draft.replicas[version.name]
        for _ in range(len(replicas)):  # they double at most
            if not (_may_grow(version, len(replicas)) and draft.crowded(version)):
                break
            targets = draft.targets(version, evict=True, relieve=True)
            if not targets:
                break
            reason = f"{version.demand:.1f} requests in flight on {len(replicas)} engines"
            yield Move("replicate", version.name, targets[0].name, reason)


def _shrinkage(draft: Draft) -> Iterator[Move]:
    """One replica of a version at a time."""
    grown = {move.version for move in draft.moves if move.kind == "replicate"}
    for version in draft.versions.values():
        replicas = draft.replicas[version.name]
        calm = max(version.demand, version.peak) < SHRINK * draft.room(version)
        if len(replicas) <= max(1, version.min_replicas) or version.name in grown or not calm:
            continue
        for name in draft.droppable(version):
            if draft.settled_without(version, name):
                reason = f"at most {version.peak:.1f} requests in flight on {len(replicas)} engines lately"
                yield Move("drop", version.name, name, reason)
                break


def _prefetch(draft: Draft) -> Iterator[Move]:
    """What was called lately, or is pinned, and is nowhere; only into free slots."""
    for version in draft.versions.values():
        if draft.replicas[version.name]:
            continue
        if version.pinned or version.demand >= draft.limits.prefetch:
            for target in draft.targets(version, evict=False)[:1]:
                reason = "pinned" if version.pinned else f"{version.demand:.1f} requests in flight"
                yield Move("prefetch", version.name, target.name, f"{reason}, and not resident anywhere")


def _may_grow(version: PlannedVersion, replicas: int) -> bool:
    return version.max_replicas is None or replicas < version.max_replicas
