"""What operators asked for and no request brings about: labels, minimum and maximum replicas, pins, trials,
and versions that are merged into an engine's weights.

`plan` is pure. Capacity is not its business: requests open replicas where they would wait longer than a load
takes, and claims evict what was used least recently. Nothing here looks at demand, so the two never undo each
other's work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from adapters.model import SlotState
from adapters.placement.plan_draft import Draft, meets
from adapters.placement.planned_fleet import FleetSnapshot, Move, PlanLimits, PlannedVersion
from adapters.wording import counted

_LIMITS = PlanLimits()


def plan(snapshot: FleetSnapshot, limits: PlanLimits = _LIMITS) -> tuple[Move, ...]:
    """The next moves, the most urgent first. The same snapshot always gives the same plan."""
    draft = Draft(snapshot, limits)
    for step in (_misplaced, _surplus, _merged, _minimum, _pinned, _tried):
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
                yield Move(
                    "drop",
                    name,
                    engine.name,
                    "its tenant requires other labels, or the engine is dedicated to another",
                )


def _surplus(draft: Draft) -> Iterator[Move]:
    for version in draft.versions.values():
        most = version.max_replicas
        if most is not None and len(draft.replicas[version.name]) > most:
            for engine in draft.droppable(version)[:1]:
                have = len(draft.replicas[version.name])
                yield Move("drop", version.name, engine, f"{have} replicas, at most {most} allowed")


def _merged(draft: Draft) -> Iterator[Move]:
    """What engines have in their weights, once they are up and have been compared with other engines."""
    for engine in draft.engines.values():
        version = draft.versions.get(engine.only or "")
        if version is None or engine.name in draft.replicas[version.name]:
            continue
        most = version.max_replicas
        room = most is None or len(draft.replicas[version.name]) < most
        if room and engine in draft.targets(version, evict=False):
            yield Move("prefetch", version.name, engine.name, "merged into its weights")


def _minimum(draft: Draft) -> Iterator[Move]:
    for version in draft.versions.values():
        if version.min_replicas:
            yield from _missing(draft, version)


def _missing(draft: Draft, version: PlannedVersion) -> Iterator[Move]:
    replicas, least = draft.replicas[version.name], version.min_replicas
    most = math.inf if version.max_replicas is None else version.max_replicas
    while (
        (have := len(draft.proven(version))) < least
        and len(replicas) < most
        and (targets := draft.targets(version, evict=True))
    ):
        reason = f"{counted(have, 'replica')}, at least {least} wanted"
        yield Move("replicate", version.name, targets[0].name, reason)
    domains = {draft.engines[name].domain for name in replicas}
    if len(domains) < least <= len(replicas) < most:
        for target in draft.targets(version, evict=False)[:1]:
            if target.domain not in domains:
                reason = f"its {len(replicas)} replicas are on {len(domains)} hosts"
                yield Move("replicate", version.name, target.name, reason)


def _pinned(draft: Draft) -> Iterator[Move]:
    """What is pinned and nowhere; only into free slots."""
    for version in draft.versions.values():
        if version.pinned and not draft.replicas[version.name]:
            for target in draft.targets(version, evict=False)[:1]:
                yield Move("prefetch", version.name, target.name, "pinned, and not resident anywhere")


def _tried(draft: Draft) -> Iterator[Move]:
    """What the others serve, on engines on trial: the most recently used first, into free slots."""
    if not any(engine.trial for engine in draft.engines.values()):
        return
    for version in sorted(draft.versions.values(), key=lambda v: (_idle(draft, v), v.name)):
        replicas, most = draft.replicas[version.name], version.max_replicas
        serving = [name for name in replicas if not draft.engines[name].trial]
        if serving and (most is None or len(replicas) < most):
            for target in draft.targets(version, evict=False, trial=True)[:1]:
                yield Move("prefetch", version.name, target.name, "on trial beside engines that serve it")


def _idle(draft: Draft, version: PlannedVersion) -> float:
    placed = (draft.engines[name].held.get(version.name) for name in draft.replicas[version.name])
    return min((p.idle for p in placed if p is not None), default=math.inf)
