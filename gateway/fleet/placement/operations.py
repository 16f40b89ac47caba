"""Why the placement changed: what this worker heard, with what the planner said of its moves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from adapters.placement import placement_log
from gateway.fleet.placement.schemas import PlacementChange, PlannerMove

_LOADED: Final = frozenset({"loaded", "activated"})
_DROPPED: Final = frozenset({"unloaded", "evicted"})
_SOON: Final = 5_000_000
"""Microseconds. The planner records a move as soon as it has happened."""


def explained(
    changes: Iterable[placement_log.PlacementChange], moves: Sequence[PlannerMove]
) -> list[PlacementChange]:
    """`moves`: the planner's, as recorded."""
    return [PlacementChange.of(change, why=_reason(change, moves)) for change in changes]


def _reason(change: placement_log.PlacementChange, moves: Sequence[PlannerMove]) -> str | None:
    if change.room_for:
        return f"to make room for {change.room_for}"
    return next((move.why for move in moves if _caused(move, change)), None)


def _caused(move: PlannerMove, change: placement_log.PlacementChange) -> bool:
    kinds = _DROPPED if move.kind == "drop" else _LOADED
    return (
        change.kind in kinds
        and (move.version, move.engine) == (change.version, change.engine)
        and abs(move.moved_at - change.changed_at) <= _SOON
    )
