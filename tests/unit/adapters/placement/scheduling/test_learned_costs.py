from __future__ import annotations

import random

import pytest

from adapters.placement.scheduling.costs import EngineCosts
from adapters.placement.scheduling.learned_costs import RANGE, LearnedCosts, Slope


def test_slope_starts_at_its_prior_and_learns_the_true_one():
    slope, rng = Slope(0.05), random.Random(1)
    assert slope.value == pytest.approx(0.05)
    for _ in range(1000):
        x = rng.uniform(0, 50)
        slope.observe(x, 12 + 0.4 * x + rng.gauss(0, 1))
    assert slope.value == pytest.approx(0.4, rel=0.25)


def test_slope_of_a_constant_is_its_prior():
    slope = Slope(0.05)
    for _ in range(500):
        slope.observe(4, 20)
    assert slope.value == pytest.approx(0.05)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_what_is_learned_does_not_depend_on_the_unit_of_x(scale: float):
    slope, rng = Slope(0.05 / scale), random.Random(2)
    for _ in range(300):
        x = rng.uniform(0, 50)
        slope.observe(x * scale, 0.2 * x)
    assert slope.value * scale == pytest.approx(0.175, rel=0.1)


def test_an_engine_with_slow_loads():
    learned = LearnedCosts(EngineCosts())
    for _ in range(30):
        learned.loaded(8, 700)
    assert learned.costs.load(8) == pytest.approx(700, rel=0.05)
    prior = EngineCosts()
    assert learned.costs.load(32) == pytest.approx(700 * prior.load(32) / prior.load(8), rel=0.05)


def test_an_engine_whose_tokens_slow_down_with_its_load():
    learned, rng = LearnedCosts(EngineCosts()), random.Random(3)
    for _ in range(1000):
        n = rng.randrange(1, 40)
        learned.answered(in_flight=n, pending=300, first_token_ms=60, token_ms=10 + 0.5 * n, tokens=100)
    assert learned.costs.per_request == pytest.approx(2 * 0.5 * 100, rel=0.3)
    assert learned.costs.per_prompt_token == pytest.approx(EngineCosts().per_prompt_token)


@pytest.mark.parametrize("milliseconds", [0.0, 1e-9, 1e12])
def test_nonsense_stays_within_the_range(milliseconds: float):
    learned, prior = LearnedCosts(EngineCosts()), EngineCosts()
    for n in range(200):
        learned.loaded(8, milliseconds)
        learned.answered(
            in_flight=n, pending=n, first_token_ms=milliseconds * n, token_ms=milliseconds * n, tokens=5000
        )
    for name in ("per_request", "per_prompt_token", "load_base"):
        assert (
            getattr(prior, name) / RANGE * 0.99
            <= getattr(learned.costs, name)
            <= getattr(prior, name) * RANGE
        )
