"""Cases worked by hand; tests/property/test_attribution.py holds what must be true of all."""

import random
from itertools import product

import pytest

from gateway.costs.prices.book import rate_micros
from gateway.costs.rollups.attribution import (
    BRIDGED,
    Attempt,
    HourInput,
    divide,
    largest_remainder,
    nano_gpu_hours,
    run,
    union,
    within,
)
from gateway.costs.rollups.token_weights import Weights
from gateway.units import HOUR, decimal_text

GPU_HOUR = 10**9
HALF, QUARTER = HOUR // 2, HOUR // 4
MINUTE = 60_000_000


def attempt(name, start, end, weight=1):
    """Of `weight` tokens."""
    return Attempt(name, start, end, weight, None, 0)


def per_second(gpu_seconds, **others):
    """Calibrated weights: each prompt token is worth so many GPU-seconds."""
    return Weights(
        **{
            "id": 1,
            "prefill_ps": gpu_seconds * 10**12,
            "cached_ps": 0,
            "decode_ps": 0,
            "kv_ps": 0,
            "load_ps": 0,
            **others,
        }
    )


def whole(**changes):
    """One GPU, ready for the whole hour."""
    return HourInput(**{"hour": 0, "gpus": 1, "up": [(0, HOUR)], **changes})


def unwatched(**changes):
    """Nobody saw the engine; only the records tell."""
    return HourInput(**{"hour": 0, "gpus": 1, **changes})


def shares(pool, *attempts):
    [piece] = divide(pool, attempts)
    return {attempts[n].id: nano for n, nano in zip(piece.who, piece.shares, strict=True)}


def buckets(piece):
    return sum(piece.shares), piece.headroom, piece.startup, piece.idle


@pytest.mark.parametrize(
    ("intervals", "made"),
    [
        ([], []),
        ([(0, 5), (5, 7)], [(0, 7)]),
        ([(0, 5), (3, 7), (6, 6)], [(0, 7)]),
        ([(0, 10), (2, 3)], [(0, 10)]),
        ([(10, 20), (0, 5)], [(0, 5), (10, 20)]),
    ],
)
def test_union(intervals, made):
    assert union(intervals) == made


@pytest.mark.parametrize(("gap", "parts"), [(9, 1), (10, 2), (11, 2)])
def test_only_shorter_gaps_are_bridged(gap, parts):
    assert len(union([(0, 100), (100 + gap, 200)], bridged=10)) == parts


def test_within_is_the_length_inside():
    assert within([(0, 10), (20, 30), (35, 50)], 5, 40) == 5 + 10 + 5


def test_whole_hours_are_exact():
    assert nano_gpu_hours(HOUR, 3) == 3 * GPU_HOUR


@pytest.mark.parametrize(
    ("total", "weights", "names", "parts"),
    [
        (100, [1, 1, 1], "abc", [34, 33, 33]),
        (100, [1, 1, 1], "cba", [33, 33, 34]),
        (7, [0, 2, 1], "abc", [0, 5, 2]),
        (5, [0, 0], "ab", [3, 2]),
        (5, [0, 0], "ba", [2, 3]),
        (0, [], "", []),
        (9, [3], "a", [9]),
        (2, [1, 1, 1, 1], "dcba", [0, 0, 1, 1]),
    ],
)
def test_largest_remainder(total, weights, names, parts):
    assert largest_remainder(total, weights, names) == parts


def test_an_hour_of_two_is_divided_by_weight():
    given = shares(unwatched(), attempt("a", 0, HALF, 3), attempt("b", 0, QUARTER, 1))
    assert given == {"a": GPU_HOUR * 3 // 8, "b": GPU_HOUR // 8}


def test_gpus_multiply():
    assert shares(unwatched(gpus=8), attempt("a", 0, HOUR)) == {"a": 8 * GPU_HOUR}


def test_attempts_without_a_weight_share_alike():
    given = shares(unwatched(), attempt("a", 0, HALF, 0), attempt("b", QUARTER, HALF, 0))
    assert given == {"a": QUARTER * 10 // 36, "b": QUARTER * 10 // 36}


def test_what_was_provisioned_and_not_used_is_idle():
    [piece] = divide(whole(), [attempt("a", 0, QUARTER)])
    assert buckets(piece) == (GPU_HOUR // 4, 0, 0, GPU_HOUR * 3 // 4)
    assert (piece.provisioned_us, piece.busy_us, piece.startup_us) == (HOUR, QUARTER, 0)


def test_an_engine_that_nobody_used():
    [piece] = divide(whole(gpus=2), [])
    assert buckets(piece) == (0, 0, 0, 2 * GPU_HOUR)


def test_nothing_at_all():
    [piece] = divide(unwatched(), [])
    assert (piece.total, *buckets(piece)) == (0, 0, 0, 0, 0)


def test_starting_up_is_a_bucket_of_its_own():
    [piece] = divide(HourInput(0, 1, up=[(HALF, HOUR)], startup=[(QUARTER, HALF)]), [])
    assert buckets(piece) == (0, 0, GPU_HOUR // 4, GPU_HOUR // 2)


def test_work_during_start_up_is_work():
    """One worker saw it ready before the other did; and requests ran before either looked."""
    pool = HourInput(0, 1, startup=[(0, HOUR)], up=[(3 * QUARTER, HOUR)])
    [piece] = divide(pool, [attempt("a", HALF, 3 * QUARTER)])
    assert buckets(piece) == (GPU_HOUR // 4, 0, GPU_HOUR // 2, GPU_HOUR // 4)


def test_a_restarted_gateway_s_gap_counts_as_alive():
    up = [(0, HALF), (HALF + BRIDGED - 1, HOUR)]
    assert divide(HourInput(0, 1, up=up), [])[0].total == GPU_HOUR
    up = [(0, HALF), (HALF + BRIDGED, HOUR)]
    assert divide(HourInput(0, 1, up=up), [])[0].total == nano_gpu_hours(HOUR - BRIDGED, 1)


def test_a_gap_is_bridged_across_the_hour_s_end():
    up = [(0, HOUR - MINUTE // 2), (HOUR + MINUTE // 3, 2 * HOUR)]
    assert divide(HourInput(0, 1, up=up), [])[0].total == GPU_HOUR
    assert divide(HourInput(HOUR, 1, up=up), [])[0].total == GPU_HOUR


def test_in_flight_intervals_bridge_nothing():
    pool = HourInput(0, 1, up=[(0, MINUTE)])
    [piece] = divide(pool, [attempt("a", MINUTE + MINUTE // 2, 2 * MINUTE)])
    assert piece.provisioned_us == MINUTE + MINUTE // 2


def test_calibrated_work_leaves_headroom():
    """Busy for half an hour with work for a quarter."""
    pool = whole(weights=per_second(450))
    [piece] = divide(pool, [attempt("a", 0, HALF, 1), attempt("b", 0, HALF, 1)])
    assert buckets(piece) == (GPU_HOUR // 4, GPU_HOUR // 4, 0, GPU_HOUR // 2)
    assert list(piece.shares) == [GPU_HOUR // 8, GPU_HOUR // 8]
    assert piece.omegas[0] == [450 * 10**9] * 2


def test_work_is_never_more_than_the_time_that_was_busy():
    pool = whole(weights=per_second(3600))
    [piece] = divide(pool, [attempt("a", 0, HALF, 3), attempt("b", 0, HALF, 1)])
    assert buckets(piece) == (GPU_HOUR // 2, 0, 0, GPU_HOUR // 2)
    assert list(piece.shares) == [GPU_HOUR * 3 // 8, GPU_HOUR // 8]


def test_headroom_counts_all_gpus():
    pool = whole(gpus=4, weights=per_second(3600))
    [piece] = divide(pool, [attempt("a", 0, HOUR, 1)])
    assert buckets(piece) == (GPU_HOUR, 3 * GPU_HOUR, 0, 0)


def test_calibrated_attempts_without_work_leave_it_all_to_headroom():
    [piece] = divide(whole(weights=per_second(1)), [attempt("a", 0, HALF, 0)])
    assert buckets(piece) == (0, GPU_HOUR // 2, 0, GPU_HOUR // 2)


def test_a_request_that_crosses_the_hour_pays_in_both():
    a = attempt("a", HALF, 2 * HOUR + HALF)
    given = [divide(unwatched(hour=n * HOUR), [a])[0].shares for n in range(3)]
    assert given == [[GPU_HOUR // 2], [GPU_HOUR], [GPU_HOUR // 2]]


def test_beside_others_it_pays_for_the_part_of_its_time_that_is_there():
    a, b = attempt("a", HALF, HOUR + HALF, 100), attempt("b", HALF, HOUR, 150)
    assert shares(unwatched(), a, b) == {"a": GPU_HOUR // 8, "b": GPU_HOUR * 3 // 8}


def test_or_for_what_its_marks_say():
    """It had 90 of its 100 tokens, all of the output to come, at the hour's turn."""
    marks = f"[[{HOUR},90,null,0]]"
    a = Attempt("a", HALF, HOUR + HALF, 90, None, 5, 0, marks)
    b = attempt("b", HALF, HOUR, 10)
    assert shares(unwatched(), a, b) == {"a": GPU_HOUR * 9 // 20, "b": GPU_HOUR // 20}
    [piece] = divide(unwatched(hour=HOUR), [a])
    assert piece.omegas == ([0], [0], [10], [0])


def test_a_cut_divides_each_side_among_those_who_ran_there():
    works = [attempt("a", 0, HALF, 5), attempt("b", HALF, HOUR, 1)]
    first, second = divide(unwatched(cuts=[HALF]), works)
    assert (first.start, first.end, second.end) == (0, HALF, HOUR)
    assert [(list(p.who), p.shares) for p in (first, second)] == [
        ([0], [GPU_HOUR // 2]),
        ([1], [GPU_HOUR // 2]),
    ]


def test_each_piece_has_its_own_buckets():
    pool = HourInput(0, 1, startup=[(0, QUARTER)], up=[(QUARTER, HOUR)], cuts=[HALF])
    first, second = divide(pool, [attempt("a", 3 * QUARTER, HOUR)])
    assert buckets(first) == (0, 0, GPU_HOUR // 4, GPU_HOUR // 4)
    assert buckets(second) == (GPU_HOUR // 4, 0, 0, GPU_HOUR // 4)


def test_who_ended_as_the_hour_began_ran_before_it():
    [piece] = divide(unwatched(hour=HOUR), [attempt("a", HALF, HOUR)])
    assert list(piece.who) == []
    assert piece.total == 0


@pytest.mark.parametrize("dispatched", [700, 701, 10**9])
def test_a_clock_that_was_set_back_makes_no_negative_time(dispatched):
    assert run(dispatched, 700) == (700, 701)
    [piece] = divide(unwatched(), [attempt("a", dispatched, 700)])
    assert (piece.busy_us, list(piece.who)) == (1, [0])


@pytest.mark.parametrize(
    ("gpus", "rate", "hours", "cost"),
    [(8, "4.09625", 10, "327.70"), (8, "5.13", 4, "164.16"), (8, "2.1875", 20, "350.00")],
)
def test_golden_totals_to_the_last_unit(gpus, rate, hours, cost):
    """8 GPUs for 32.77, 41.04 and 17.50 an hour, divided among requests as awkwardly as can be."""
    chance = random.Random(hours)
    spans = {"up": [(777, hours * HOUR)], "startup": [(0, 777)]}
    attempts = []
    for n in range(60 * hours):
        start = chance.randrange(hours * HOUR - 1)
        end = min(start + chance.randrange(1, HOUR), hours * HOUR)
        attempts.append(attempt(f"{n:04}", start, end, chance.randrange(4000)))
    total, price = 0, rate_micros(rate)
    for hour in range(0, hours * HOUR, HOUR):
        here = [a for a in attempts if a.dispatched < hour + HOUR and a.ended > hour]
        for piece in divide(HourInput(hour, gpus, cuts=[hour + 12_345], **spans), here):
            total += sum(part * price for part in (*piece.shares, piece.headroom, piece.startup, piece.idle))
    assert decimal_text(total, 15) == cost


def test_two_thousand_random_hours_add_up():
    """Parts = whole in quantity, and so in cost, at any rate."""
    chance = random.Random(2000)
    for case, calibrated in product(range(1000), (False, True)):

        def time(least=-HALF):
            return chance.randrange(least, HOUR + HALF)

        attempts = []
        for n in range(chance.randrange(8)):
            start = time()
            attempts.append(
                attempt(f"{case}-{n}", start, start + chance.randrange(1, HOUR), chance.randrange(3))
            )
        spans = [sorted((time(), time())) for _ in range(chance.randrange(4))]
        weights = {"weights": per_second(chance.randrange(4000))} if calibrated else {}
        pool = HourInput(
            0, chance.choice([1, 3, 8]), up=[tuple(s) for s in spans[:2]], startup=[tuple(s) for s in spans[2:]],
            cuts=sorted({chance.randrange(1, HOUR) for _ in range(chance.randrange(3))}), **weights,
        )  # fmt: skip
        pieces = divide(pool, attempts)
        assert all(sum(buckets(p)) == p.total and min(buckets(p)) >= 0 for p in pieces)
        assert sum(p.total for p in pieces) == nano_gpu_hours(
            sum(p.provisioned_us for p in pieces), pool.gpus
        )
