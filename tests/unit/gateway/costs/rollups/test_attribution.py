"""Cases worked by hand; tests/property/test_attribution.py holds what must be true of all."""

import random

import pytest

from gateway.costs.prices.book import rate_micros
from gateway.costs.rollups.attribution import (
    BRIDGED,
    Attempt,
    HourInput,
    divide,
    nano_gpu_hours,
    run,
)
from gateway.units import HOUR, decimal_text

GPU_HOUR = 10**9
HALF, QUARTER = HOUR // 2, HOUR // 4


def attempt(name, start, end, weight=1):
    """Of `weight` tokens."""
    return Attempt(name, start, end, weight, None, 0)


def unwatched(**changes):
    """Nobody saw the engine; only the records tell."""
    return HourInput(**{"hour": 0, "gpus": 1, **changes})


def shares(pool, *attempts):
    [piece] = divide(pool, attempts)
    return {attempts[n].id: nano for n, nano in zip(piece.who, piece.shares, strict=True)}


def buckets(piece):
    return sum(piece.shares), piece.headroom, piece.startup, piece.idle


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


def test_or_for_what_its_marks_say():
    """It had 90 of its 100 tokens, all of the output to come, at the hour's turn."""
    marks = f"[[{HOUR},90,null,0]]"
    a = Attempt("a", HALF, HOUR + HALF, 90, None, 5, 0, marks)
    b = attempt("b", HALF, HOUR, 10)
    assert shares(unwatched(), a, b) == {"a": GPU_HOUR * 9 // 20, "b": GPU_HOUR // 20}
    [piece] = divide(unwatched(hour=HOUR), [a])
    assert piece.omegas == ([0], [0], [10], [0])


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
