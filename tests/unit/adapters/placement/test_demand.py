"""Samples of what is asked for."""

from __future__ import annotations

import pytest

from adapters.placement.demand import Demand

HALF_LIFE, WINDOW = 3.0, 60.0


def test_the_first_sample_counts_in_full_and_later_ones_by_their_age():
    demand = Demand(half_life=HALF_LIFE, window=WINDOW)
    demand.sample({"a": 8}, 100.0)
    assert demand.mean("a") == 8
    demand.sample({"a": 0, "b": 4}, 100.0 + HALF_LIFE)
    assert (demand.mean("a"), demand.mean("b")) == (4, 2)
    demand.sample({"a": 0, "b": 4}, 100.0 + 2 * HALF_LIFE)
    assert (demand.mean("a"), demand.mean("b")) == (2, 3)
    assert demand.mean("c") == 0


def test_what_is_called_no_more_is_forgotten():
    demand = Demand(half_life=HALF_LIFE, window=WINDOW)
    for n in range(20):
        demand.sample({"a": 1} if n == 0 else {}, n * HALF_LIFE)
    assert demand.mean("a") == 0


@pytest.mark.parametrize(("after", "peak"), [(0.5, 50), (0.9, 50), (2.5, 0)])
def test_a_peak_is_remembered_for_one_to_two_windows(after, peak):
    demand = Demand(half_life=HALF_LIFE, window=WINDOW)
    demand.sample({"a": 50}, 0.0)
    assert not demand.knows_the_past
    seconds = 0.0
    while seconds < after * WINDOW:
        seconds += 1.0
        demand.sample({}, seconds)
    assert demand.peak("a") == pytest.approx(peak, abs=0.1)
    assert demand.knows_the_past == (after > 1)
