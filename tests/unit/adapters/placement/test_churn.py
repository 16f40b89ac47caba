"""What counts as a load, as an eviction, and as undone."""

from __future__ import annotations

from itertools import pairwise

import pytest

from adapters.model import SlotState
from adapters.placement.churn import SOON, Changes, Churn

LOADING, RESIDENT, LEAVING, CACHED, LOST = (
    SlotState.LOADING, SlotState.RESIDENT, SlotState.LEAVING, SlotState.CACHED, SlotState.LOST,
)  # fmt: skip
LOAD = (None, LOADING, RESIDENT)


def seen(*steps: tuple[float, str, tuple[SlotState | None, ...]], window: float = 1000) -> Changes:
    """A version's states on engines, each from a moment on."""
    churn = Churn(window)
    for now, engine, states in steps:
        for before, after in pairwise(states):
            churn.changed(engine, "v", before, after, now)
    return churn.lately(steps[-1][0])


@pytest.mark.parametrize(
    ("steps", "changes"),
    [
        ([(0, "a", LOAD)], Changes(1, 0, 0)),
        ([(0, "a", (*LOAD, LEAVING, RESIDENT))], Changes(1, 0, 0)),
        ([(0, "a", LOAD), (SOON + 1, "a", (RESIDENT, CACHED))], Changes(1, 1, 0)),
        ([(0, "a", LOAD), (9, "a", (RESIDENT, LEAVING, CACHED))], Changes(1, 1, 1)),
        ([(0, "a", LOAD), (9, "b", (RESIDENT, None))], Changes(1, 1, 0)),
        ([(0, "a", (RESIDENT, CACHED)), (9, "b", LOAD)], Changes(1, 1, 1)),
        ([(0, "a", (RESIDENT, CACHED)), (9, "a", (CACHED, RESIDENT))], Changes(0, 1, 1)),
        ([(0, "a", (RESIDENT, CACHED)), (SOON + 1, "a", (CACHED, RESIDENT))], Changes(0, 1, 0)),
        ([(0, "a", (RESIDENT, LOST)), (9, "a", (LOST, LOADING, RESIDENT))], Changes(1, 0, 0)),
        ([(0, "a", (CACHED, None))], Changes(0, 0, 0)),
    ],
)
def test_what_counts(steps, changes):
    assert seen(*steps) == changes


def test_only_the_last_minutes_count():
    assert seen((0, "a", LOAD), (50, "b", LOAD), (101, "c", LOAD), window=100) == Changes(2, 0, 0)
