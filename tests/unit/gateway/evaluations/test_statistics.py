from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evaluations.statistics import LEVEL, bootstrap, mcnemar, paired_proportions, wilson

scores = st.lists(st.floats(-5, 5, allow_nan=False), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [  # Newcombe (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_as_published(successes: int, count: int, low: float, high: float):
    found = wilson(successes, count)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@given(st.integers(1, 10_000), st.data())
def test_wilson_holds_the_proportion_and_is_symmetric(count: int, chosen: st.DataObject):
    successes = chosen.draw(st.integers(0, count))
    found, mirrored = wilson(successes, count), wilson(count - successes, count)
    assert 0 <= found.low <= successes / count <= found.high <= 1
    assert found.low == pytest.approx(1 - mirrored.high, abs=1e-12)


def test_paired_proportions():
    found = paired_proportions(0, 0, 22)
    assert (found.low, found.high) == (pytest.approx(-0.1155, abs=1e-4), pytest.approx(0.1155, abs=1e-4))
    found = paired_proportions(2, 12, 98)  # (3 - 13) / 100 -+ 1.96 sqrt((0.16 - 0.01) / 100)
    assert (found.low, found.high) == (pytest.approx(-0.1759, abs=1e-4), pytest.approx(-0.0241, abs=1e-4))
    assert paired_proportions(0, 0, 136).low < -0.02 < paired_proportions(0, 0, 137).low


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_paired_proportions_are_symmetric_and_possible(better: int, worse: int, equal: int):
    count = better + worse + equal
    found, mirrored = paired_proportions(better, worse, count), paired_proportions(worse, better, count)
    assert -1 <= found.low < found.high <= 1
    assert found.low == pytest.approx(-mirrored.high)


def test_paired_proportions_cover_the_truth_as_often_as_they_say():
    random, truth, held = Random(5), -0.04, 0
    for _ in range(2000):
        drawn = [random.random() for _ in range(60)]
        found = paired_proportions(sum(d < 0.03 for d in drawn), sum(0.03 <= d < 0.10 for d in drawn), 60)
        held += found.low <= truth <= found.high
    assert held / 2000 > LEVEL - 0.02


@given(scores)
def test_the_bootstrap_lies_within_the_values_and_repeats_itself(values: list[float]):
    found = bootstrap(values)
    assert found == bootstrap(values)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    mirrored = bootstrap([-value for value in values])
    assert (mirrored.low, mirrored.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_nothing_is_known_of_nothing():
    assert (bootstrap([]).low, bootstrap([]).high) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("better", "worse", "p"), [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 0.0625), (1, 9, 0.021484), (6, 16, 0.052479)]
)
def test_mcnemar_is_the_exact_binomial_test(better: int, worse: int, p: float):
    assert mcnemar(better, worse) == mcnemar(worse, better) == pytest.approx(p, abs=1e-6)
