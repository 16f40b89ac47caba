"""Whether something grows: a leak is found, noise and a warm-up are not."""

from __future__ import annotations

import random

import pytest

from loadtests.soak.samples import allowed
from loadtests.soak.trend import trend

DRAW = random.Random(1)


def series(value, points: int = 120, every: float = 5.0):
    return [(at * every, value(at * every)) for at in range(points)]


@pytest.mark.parametrize(
    ("value", "grows"),
    [
        (lambda _: 100.0, False),
        (lambda _: 100 + DRAW.gauss(0, 5), False),  # noise
        (lambda at: 100 - at / 10, False),  # it shrinks
        (lambda at: 50 + min(at, 150) / 3, False),  # a warm-up
        (lambda at: 100 + (500 if at == 400 else 0), False),  # one outlier
        (lambda at: 100 + 20 * ((at // 5) % 6 == 0), False),  # comes and goes
        (lambda at: 100 + at / 20, True),  # 21 over the seven minutes looked at
        (lambda at: 100 + at / 20 + DRAW.gauss(0, 5), True),
        (lambda at: 100 + 10 * (at // 150), True),  # in steps
        (lambda at: 100 + at / 60, False),  # 7: within what is allowed
    ],
)
def test_what_grows(value, grows):
    assert trend(series(value), 8.0).grows == grows


def test_figures():
    found = trend(series(lambda at: 10 + at / 100), None)
    assert found.growth == pytest.approx(4.15, abs=0.06)
    assert found.hourly == pytest.approx(36.0)
    assert not found.grows  # it may
    assert (found.first, found.last) == (pytest.approx(12.2, abs=0.1), pytest.approx(15.5, abs=0.1))


def test_many_points_and_too_few():
    assert trend(series(lambda at: at, points=20_000), 8.0).grows
    with pytest.raises(ValueError, match="three points"):
        trend([(0.0, 1.0), (1.0, 2.0)], 8.0)


def test_each_series_has_its_limit():
    assert allowed("worker 1 own memory MiB") == 8.0
    assert allowed("ledger rows") is None
    with pytest.raises(StopIteration):
        allowed("something else")
