"""Cases worked by hand; tests/property/test_attribution.py holds what must be true of all."""

import pytest

from gateway.costs.attribution import (
    Work,
    attribute,
    attribute_hour,
    busy,
    largest_remainder,
    nano_gpu_hours,
    weight,
)
from gateway.costs.periods import HOUR

POOL = ("gpu-a", "H100", 1)
GPU_HOUR = 10**9


def work(name, start, end, weight=1, pool=POOL):
    return Work(name, pool, start, end, weight)


def no_cuts(*_):
    return ()


@pytest.mark.parametrize(
    ("intervals", "length"),
    [
        ([], 0),
        ([(0, 5), (5, 7)], 7),
        ([(0, 5), (3, 7), (6, 6)], 7),
        ([(0, 10), (2, 3)], 10),
        ([(10, 20), (0, 5)], 15),
    ],
)
def test_busy_is_the_length_of_the_union(intervals, length):
    assert busy(intervals) == length


def test_largest_remainder():
    assert largest_remainder(100, [("a", 1), ("b", 1), ("c", 1)]) == {"a": 34, "b": 33, "c": 33}
    assert largest_remainder(100, [("c", 1), ("b", 1), ("a", 1)]) == {"a": 34, "b": 33, "c": 33}
    assert largest_remainder(7, [("a", 0), ("b", 2), ("c", 1)]) == {"a": 0, "b": 5, "c": 2}
    assert largest_remainder(5, [("a", 0), ("b", 0)]) == {"a": 3, "b": 2}


def test_weights_without_calibration():
    assert weight(100, 40, 10) == 80
    assert weight(100, None, 10) == 120
    assert weight(10, 40, 1) == 2


def test_an_hour_of_two_is_divided_by_weight():
    shares = list(attribute_hour([work("a", 0, HOUR // 2, 3), work("b", 0, HOUR // 4, 1)], 0))
    assert {s.work.id: s.nano_gpu_hours for s in shares} == {"a": GPU_HOUR * 3 // 8, "b": GPU_HOUR // 8}


def test_gpus_multiply():
    [share] = attribute_hour([work("a", 0, HOUR, pool=("e", "H100", 8))], 0)
    assert share.nano_gpu_hours == 8 * GPU_HOUR


def test_a_request_that_crosses_the_hour_pays_in_both():
    shares = list(attribute([work("a", HOUR // 2, 2 * HOUR + HOUR // 2)], no_cuts))
    assert [(s.piece, s.nano_gpu_hours) for s in shares] == [
        (0, GPU_HOUR // 2),
        (HOUR, GPU_HOUR),
        (2 * HOUR, GPU_HOUR // 2),
    ]


def test_a_cut_divides_each_side_among_those_who_ran_there():
    half = HOUR // 2
    works = [work("a", 0, half, 5), work("b", half, HOUR, 1)]
    shares = {(s.work.id, s.piece): s.nano_gpu_hours for s in attribute(works, lambda *_: [half])}
    assert shares == {("a", 0): GPU_HOUR // 2, ("b", half): GPU_HOUR // 2}


def test_engines_and_idle_hours_stay_apart():
    other = ("gpu-b", "A100", 2)
    works = [work("a", 0, HOUR), work("b", 9 * HOUR, 10 * HOUR), work("c", 0, HOUR // 2, pool=other)]
    shares = [(s.work.id, s.piece, s.nano_gpu_hours) for s in attribute(works, no_cuts)]
    assert shares == [("a", 0, GPU_HOUR), ("b", 9 * HOUR, GPU_HOUR), ("c", 0, GPU_HOUR)]


def test_whole_hours_are_exact():
    assert nano_gpu_hours(HOUR, 3) == 3 * GPU_HOUR
