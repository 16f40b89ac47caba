import itertools

import pytest

from gateway.costs.rollups.attribution import Attempt, run
from gateway.costs.rollups.token_weights import UNCALIBRATED, Weights, knots, omega, omegas

SECOND = 1_000_000
CALIBRATED = Weights(7, prefill_ps=1_500, cached_ps=250, decode_ps=90_001, kv_ps=3_333, load_ps=2_000_000)


@pytest.mark.parametrize("weights", [UNCALIBRATED, CALIBRATED, Weights(1, 5, 0, 5, 0, 10**9)])
def test_many_at_once_are_the_same_as_each(weights):
    attempts = [
        Attempt(f"{n}", n, 5 * n * SECOND, 37 * n, cached, 11 * n, n % 2)
        for n in range(5)
        for cached in (None, 0, 13, 10**6)
    ]
    runs = [run(a.dispatched, a.ended) for a in attempts]
    columns = omegas(weights, attempts, runs)
    assert list(zip(*columns, strict=True)) == [
        omega(weights, a.prompt, a.cached, a.completion, end - start, a.loads)
        for a, (start, end) in zip(attempts, runs, strict=True)
    ]


def along(marks, weights=UNCALIBRATED, cached=None):
    attempt = Attempt("a", 0, 10, 100, cached, 50, 1, marks)
    return [(knot.time, *knot.omega) for knot in knots(weights, attempt, 0, 10)]


def test_what_the_cache_held_is_known_in_the_end_only():
    """A mark that does not say takes the final's; the sum is the final's."""
    assert along("[[5,100,null,10]]", cached=60)[1] == (5, 40, 0, 20, 0)
    weights = Weights(1, 1000, 1000, 1000, 0, 0)
    assert along("[[5,100,null,10]]", weights, 60)[1] == (5, 40, 60, 10, 0)
    assert along("[[5,100,20,10]]", weights, 60) == [
        (0, 0, 0, 0, 0),
        (5, 40, 20, 10, 0),
        (10, 40, 60, 50, 0),
    ]


@pytest.mark.parametrize(
    "marks",
    [
        "",
        "[]",
        "nonsense",
        "[1]",
        '[["a",1,2,3]]',
        "null",
        "[[0,1,null,1]]",
        "[[10,1,null,1]]",
        "[[-5,1,null,1]]",
    ],
)
def test_what_is_no_mark_is_passed_over(marks):
    assert along(marks) == along(None)


@pytest.mark.parametrize(
    "marks", ["[[3,900,null,900]]", "[[3,90,null,40],[5,10,null,2]]", "[[3,-4,-4,-4]]", "[[3,100,300,0]]"]
)
def test_marks_that_contradict_are_bent(marks):
    found = along(marks, Weights(1, 1000, 1000, 1000, 0, 0), 30)
    assert found[-1] == (10, 70, 30, 50, 0)
    for before, after in itertools.pairwise(found):
        assert all(a <= b for a, b in zip(before, after, strict=True))
