import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.fair_queue.shares import Demand, divide, fill, part

ASKS = st.lists(
    st.tuples(st.floats(0.1, 500), st.floats(0.1, 10), st.floats(0, 100)), min_size=1, max_size=20
)


@given(ASKS, st.floats(0.1, 1000))
def test_all_is_given_and_nobody_gets_more_than_it_asks(asks, total):
    shares = fill(asks, total)
    assert sum(shares) == pytest.approx(min(total, sum(ask for ask, _, _ in asks)))
    assert all(0 <= share <= ask + 1e-9 for share, (ask, _, _) in zip(shares, asks, strict=True))


@given(ASKS, st.floats(0.1, 1000))
def test_the_level_is_the_same_for_all(asks, total):
    """Who gets less than it asks is at the level; who gets nothing is above it."""
    if total >= sum(ask for ask, _, _ in asks):
        return
    shares = fill(asks, total)
    reached = [start + share / weight for share, (_, weight, start) in zip(shares, asks, strict=True)]
    pairs = list(zip(reached, shares, asks, strict=True))
    level = max(r for r, share, _ in pairs if share > 1e-9)
    for at, share, (ask, _, _) in pairs:
        if share < ask - 1e-6:
            assert at >= level - 1e-6


def test_shares_go_where_the_tenant_asks():
    workers = {
        "one": {(1, "b"): Demand(1, 0)},
        "other": {(1, "a"): Demand(100, 8)},
    }
    assert divide(workers, 8, 0, {}) == pytest.approx({"one": 1, "other": 7})


def test_a_higher_class_comes_first():
    workers = {"one": {(0, "a"): Demand(6, 0), (1, "b"): Demand(50, 0)}, "other": {(1, "b"): Demand(50, 0)}}
    assert divide(workers, 8, 0, {}) == pytest.approx({"one": 7, "other": 1})


def test_who_is_behind_catches_up():
    workers = {"one": {(1, "a"): Demand(50, 0)}, "other": {(1, "b"): Demand(50, 0)}}
    counters = {(1, "a"): 1000.0, (1, "b"): 1400.0}
    assert divide(workers, 8, 100, counters) == pytest.approx({"one": 6, "other": 2})
    assert divide(workers, 8, 10, counters) == pytest.approx({"one": 8, "other": 0})


@given(st.integers(1, 100), st.lists(st.floats(0.1, 50), min_size=1, max_size=16))
def test_parts_exceed_what_is_free_by_less_than_the_workers(free, wants):
    parts = [part(free, want, sum(wants) - want) for want in wants]
    assert free <= sum(parts) <= free + len(wants) - 1
    assert part(0, 1, 0) == part(5, 0, 1) == 0
