"""Why the placement changed: what this worker heard, with what the planner said of its moves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

from adapters.placement.placement_log import PlacementChange
from gateway.operations.transaction import Json

_LOADED: Final = frozenset({"loaded", "activated"})
_DROPPED: Final = frozenset({"unloaded", "evicted"})
_SOON: Final = 5_000_000
"""Microseconds. The planner records a move as soon as it has happened."""


def explained(changes: Iterable[PlacementChange], moves: Sequence[Json]) -> list[Json]:
    """`moves`: the planner's, as recorded. Each change with `why`; None: it was called for, or taken away by
    an operator."""
    return [_told(change, moves) for change in changes]


def _told(change: PlacementChange, moves: Sequence[Json]) -> Json:
    told = asdict(change)
    room_for = told.pop("room_for")
    why = f"to make room for {room_for}" if room_for else None
    return told | {"why": why or next((m["why"] for m in moves if _is_of(m, change)), None)}


def _is_of(move: Json, change: PlacementChange) -> bool:
    kinds = _DROPPED if move["kind"] == "drop" else _LOADED
    return (
        change.kind in kinds
        and (move["version"], move["engine"]) == (change.version, change.engine)
        and abs(move["at"] - change.at) <= _SOON
    )
