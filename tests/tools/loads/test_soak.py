"""Whether something grows: a leak is found, noise and a warm-up are not."""

from __future__ import annotations

import random

import pytest

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
