"""The forecast, against figures worked out by hand, and how often its interval holds."""

import random
from fractions import Fraction
from statistics import mean, variance

import pytest

from gateway.costs.forecasting.forecast import HISTORY_DAYS, forecast
from gateway.costs.periods import month_of
from gateway.units import DAY

OCTOBER = month_of("2026-10")
START = OCTOBER.start
DAYS = 31


def costs(values, first=START):
    return {first + index * DAY: value for index, value in enumerate(values)}


def day(number):
    return START + number * DAY


def test_the_interval_is_the_prediction_interval_of_a_sum():
    """Ten days around one mean, 21 to come: 1.383 is Student's t for 80 % and nine degrees of freedom."""
    known = [10**12 * v for v in (90, 110, 95, 105, 100, 100, 97, 103, 92, 108)]
    found = forecast(costs(known), OCTOBER, day(10))
    expected = sum(known) + 21 * mean(known)
    width = 1.383 * float(variance(map(Fraction, known)) * (21 + Fraction(21**2, 10))) ** 0.5
    assert found.expected == expected
    assert found.high - expected == expected - found.low
    assert abs(found.high - expected - width) < 10**6
    wider = forecast(costs(known), OCTOBER, day(10), 95)
    assert (wider.high - expected) * 1383 // 2262 == pytest.approx(found.high - expected, abs=2)


def test_from_two_weeks_on_each_weekday_has_its_own_mean():
    """1 October 2026 is a Thursday: Saturdays and Sundays cost nothing."""
    known = [0 if (number + 3) % 7 > 4 else 70 for number in range(14)]
    found = forecast(costs(known), OCTOBER, day(14))
    weekdays = sum((number + 3) % 7 <= 4 for number in range(DAYS))
    assert weekdays == 22
    assert (found.expected, found.low, found.high) == (70 * 22,) * 3
    assert found.method == "weekday"


def test_history_comes_from_before_the_month_and_from_the_first_day_with_cost():
    before = costs([50] * 7, START - 7 * DAY)
    found = forecast(before, OCTOBER, START)
    assert (found.so_far, found.expected, found.days_known) == (0, 31 * 50, 7)
    old = costs([1000] * 3, START - 60 * DAY)  # beyond the history
    assert forecast({**old, **before}, OCTOBER, START).expected == 31 * 50
    assert forecast({START: 0, day(1): 0, day(2): 8, day(3): 8}, OCTOBER, day(4)).expected == 16 + 27 * 8
    assert HISTORY_DAYS == 28


@pytest.mark.parametrize("known", [[], [5]])
def test_too_little_is_known(known):
    found = forecast(costs(known), OCTOBER, day(len(known)))
    assert (found.expected, found.low, found.high, found.method) == (None, None, None, "none")
    assert found.so_far == sum(known)


@pytest.mark.parametrize(("confidence", "least", "most"), [(80, 74, 86), (95, 91, 98)])
def test_the_interval_holds_as_often_as_it_says(confidence, least, most):
    """Of 400 months with a weekly pattern, forecast on the tenth day from four weeks of history."""
    rng = random.Random(15)
    held = 0
    for _ in range(400):
        pattern = [rng.randrange(50, 150) for _ in range(7)]
        days = range(START - 18 * DAY, OCTOBER.end, DAY)
        real = {d: round(10**9 * max(0, rng.gauss(pattern[d // DAY % 7], 20))) for d in days}
        found = forecast({d: c for d, c in real.items() if d < day(10)}, OCTOBER, day(10), confidence)
        held += found.low <= sum(c for d, c in real.items() if d >= START) <= found.high
    assert least <= held / 4 <= most
