from __future__ import annotations

import pytest

from gateway.routing.retry_budget import WINDOW, RetryBudget
from tests.unit.gateway.routing.conftest import Clock


def made(share: float = 0.2, least: float = 1.0) -> tuple[RetryBudget, Clock]:
    clock = Clock()
    return RetryBudget(share, clock=clock, least_per_second=least), clock


def spend(budget: RetryBudget) -> int:
    count = 0
    while budget.allows():
        count += 1
    return count


@pytest.mark.parametrize(
    ("share", "least", "requests", "retries"),
    [(0.2, 1.0, 0, 10), (0.2, 0.0, 100, 20), (0.2, 1.0, 1000, 210), (0.0, 1.0, 1000, 10), (0.0, 0.0, 1000, 0), (1.0, 0.0, 7, 7)],
)  # fmt: skip
def test_what_is_allowed_at_once(share, least, requests, retries):
    budget, _ = made(share, least)
    for _ in range(requests):
        budget.request()
    assert spend(budget) == retries


def test_a_sick_fleet_is_not_asked_three_times_as_much():
    """Every attempt fails, for a minute: of 100 requests a second, few become more than one."""
    budget, clock = made(0.2, 10.0)
    attempts = 0
    for _ in range(60):
        for _ in range(100):
            budget.request()
            attempts += 1
            while budget.allows():
                attempts += 1
        clock.now += 1
    assert attempts / 6000 < 1.32  # a fifth, and ten a second


def test_what_was_spent_comes_back_and_wait_says_when():
    budget, clock = made()
    clock.now = 1000.5
    assert spend(budget) == 10
    assert not budget.allows()
    wait = budget.wait()
    assert 1 <= wait <= WINDOW
    clock.now += wait - 1
    assert not budget.allows()
    clock.now += 1
    assert budget.allows()


def test_wait_looks_at_each_second():
    budget, clock = made()
    budget.charge()
    for _ in range(3):
        clock.now += 3
        for _ in range(3):
            budget.charge()
    assert not budget.allows()
    assert budget.wait() == 1  # the first one is nearly ten seconds old


def test_old_requests_earn_nothing():
    budget, clock = made(0.2, 0.0)
    for _ in range(100):
        budget.request()
    clock.now += WINDOW
    assert not budget.allows()
    assert budget.wait() == WINDOW


def test_a_clock_that_stands_still_or_goes_back_breaks_nothing():
    budget, clock = made()
    budget.request()
    clock.now -= 100
    budget.request()
    assert spend(budget) == 10
