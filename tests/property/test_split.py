"""The split of callers between the live version and a canary."""

from __future__ import annotations

import random
from math import sqrt

from hypothesis import given
from hypothesis import strategies as st

from adapters.registry.canary import BUCKETS, bucket, takes_canary
from tests.support.search import examples

CANARY = "acme/support@v2"
names = st.text(min_size=1)
weights = st.integers(1, 99)
DEVIATIONS = 6
"""Standard errors that a share may be off: one false alarm in 500 million looks."""


@given(user=names, tenant=names, low=weights, high=weights)
def test_who_is_in_stays_in_when_the_weight_rises(user, tenant, low, high):
    low, high = sorted((low, high))
    assert takes_canary(CANARY, high, tenant, user) >= takes_canary(CANARY, low, tenant, user)


@examples(20)
@given(prefix=st.text("abc-_@.0123456789", max_size=8), weight=weights)
def test_the_share_is_the_weight(prefix, weight):
    users = 2_000
    share = sum(takes_canary(CANARY, weight, "acme", f"{prefix}{i}") for i in range(users)) / users
    p = weight / 100
    assert abs(share - p) <= DEVIATIONS * sqrt(p * (1 - p) / users)


def test_buckets_are_uniform():
    users, cells = 100_000, 100
    counts = [0] * cells
    for i in range(users):
        counts[bucket(CANARY, "acme", f"user-{i}") * cells // BUCKETS] += 1
    expected = users / cells
    chi_square = sum((count - expected) ** 2 / expected for count in counts)
    freedom = cells - 1
    assert abs(chi_square - freedom) <= DEVIATIONS * sqrt(2 * freedom)


@examples(20)
@given(weight=st.integers(5, 95))
def test_canaries_and_tenants_are_independent(weight):
    """Who is in for one says nothing about who is in for another: the joint share is the product."""
    users, p = 2_000, weight / 100
    others = [("acme/support@v3", "acme"), ("acme/sales@v2", "acme"), (CANARY, "bolt")]
    for canary, tenant in others:
        both = sum(
            takes_canary(CANARY, weight, "acme", str(i)) and takes_canary(canary, weight, tenant, str(i))
            for i in range(users)
        )
        joint = p * p
        assert abs(both / users - joint) <= DEVIATIONS * sqrt(joint * (1 - joint) / users)


def test_without_a_user_each_request_is_decided_by_itself(monkeypatch):
    drawn = random.Random(4)
    monkeypatch.setattr("adapters.registry.canary.random", drawn)
    requests, p = 20_000, 0.1
    share = sum(takes_canary(CANARY, 10, "acme", "") for _ in range(requests)) / requests
    assert abs(share - p) <= DEVIATIONS * sqrt(p * (1 - p) / requests)
