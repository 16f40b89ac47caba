from __future__ import annotations

import pytest

from adapters.placement.scheduling.prefix_cache import AGES, PRIOR, SAVED, PrefixCache, Seen, age_class


def test_ages_fall_into_classes():
    assert [age_class(s) for s in (0.0, 0.9, 1.0, 5.0, 1e9)] == [0, 0, 1, 2, len(AGES)]


def test_what_an_engine_reports_replaces_the_prior_for_that_age():
    cache, recent, old = PrefixCache(), Seen(0.5, 1), Seen(0.5, 5)
    assert cache.expected(recent) == 0.5 * PRIOR
    for _ in range(50):
        cache.answered(recent, prompt=1000, cached=510)
        cache.answered(old, prompt=1000, cached=0)
    assert cache.expected(recent) == pytest.approx(0.5, abs=0.01)
    assert cache.expected(old) < 0.01
    assert cache.expected(Seen(0.5, 3)) == 0.5 * PRIOR
    assert cache.uncached(1000, recent) == pytest.approx(1000 * (1 - SAVED / 2), abs=5)
    assert cache.uncached(1, recent) == 1
