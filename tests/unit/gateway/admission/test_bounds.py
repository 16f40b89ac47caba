"""What is in flight is counted once in and once out, whatever happens between."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.admission.bounds import Bounds, Limit, Place
from gateway.errors import FlorinError

KEY, TENANT, WORKER = Limit(2, 100), Limit(3, 150), Limit(5, 250)


def bounds() -> Bounds:
    return Bounds(key=KEY, tenant=TENANT, worker=WORKER)


@pytest.mark.parametrize(
    ("present", "code", "status", "words"),
    [
        ([("k1", "a")] * 2, "too_many_requests", 429, "2 requests of this key"),
        ([("k2", "a")] * 2 + [("k3", "a")], "too_many_requests", 429, "3 requests of this tenant"),
        (
            [("k2", "b")] * 2 + [("k3", "b")] + [("k4", "c")] * 2,
            "worker_full",
            503,
            "5 requests are in flight",
        ),
    ],
    ids=["key", "tenant", "worker"],
)
def test_one_too_many_is_refused_until_another_leaves(present, code, status, words):
    counted = bounds()
    places = [counted.enter(key, tenant) for key, tenant in present]
    with pytest.raises(FlorinError, match=words) as caught:
        counted.enter("k1", "a")
    assert (caught.value.code, caught.value.status, caught.value.retry_after) == (code, status, 1)
    places[0].leave()
    places[0].leave()
    counted.enter("k1", "a").leave()
    with_one_more = counted.enter("k1", "a")
    with pytest.raises(FlorinError):
        counted.enter("k1", "a")
    with_one_more.leave()


def test_bytes_are_bounded_and_come_back_when_the_body_is_let_go():
    counted = bounds()
    first, second = counted.enter("k1", "a"), counted.enter("k1", "a")
    first.grow(80)
    with pytest.raises(FlorinError, match="100 bytes of bodies of this key"):
        second.grow(21)
    second.grow(20)
    first.hold(0)
    second.grow(80)
    other, third = counted.enter("k2", "a"), counted.enter("k3", "b")
    with pytest.raises(FlorinError, match="150 bytes of bodies of this tenant"):
        other.grow(51)
    other.grow(50)
    third.grow(100)
    fourth = counted.enter("k4", "c")
    with pytest.raises(FlorinError, match="250 bytes of bodies are in flight on this worker") as caught:
        fourth.grow(1)
    assert caught.value.code == "worker_full"
    fourth.leave()
    for place in (first, second, other, third):
        place.leave()
    assert repr(counted) == "<Bounds 0 requests, 0 bytes, 0 keys, 0 tenants>"


def test_who_has_left_counts_no_more():
    counted = bounds()
    place = counted.enter("k1", "a")
    place.leave()
    place.grow(1_000_000)
    place.hold(7)
    assert repr(counted) == "<Bounds 0 requests, 0 bytes, 0 keys, 0 tenants>"


class Machine(RuleBasedStateMachine):
    """Against a list of what is in flight."""

    places = Bundle("places")

    def __init__(self) -> None:
        super().__init__()
        self.bounds = bounds()
        self.model: dict[int, tuple[str, str, int]] = {}
        self.kept: list[Place] = []

    def load(self, key: str, tenant: str) -> list[tuple[int, int, Limit]]:
        found = list(self.model.values())
        return [
            (sum(k == key for k, _, _ in found), sum(s for k, _, s in found if k == key), KEY),
            (sum(t == tenant for _, t, _ in found), sum(s for _, t, s in found if t == tenant), TENANT),
            (len(found), sum(s for _, _, s in found), WORKER),
        ]

    @rule(target=places, tenant=st.sampled_from("ab"), number=st.integers(1, 2))
    def enter(self, tenant: str, number: int) -> Place | None:
        key = f"{tenant}{number}"
        full = any(have >= limit.requests for have, _, limit in self.load(key, tenant))
        try:
            place = self.bounds.enter(key, tenant)
        except FlorinError:
            assert full
            return None
        assert not full
        self.kept.append(place)
        self.model[id(place)] = key, tenant, 0
        return place

    @rule(place=places, size=st.integers(0, 90))
    def grow(self, place: Place | None, size: int) -> None:
        if place is None:
            return
        if id(place) not in self.model:
            place.grow(size)
            return
        key, tenant, held = self.model[id(place)]
        over = any(have + size > limit.bytes for _, have, limit in self.load(key, tenant))
        try:
            place.grow(size)
        except FlorinError:
            assert over
        else:
            assert not over
            self.model[id(place)] = key, tenant, held + size

    @rule(place=places)
    def let_go(self, place: Place | None) -> None:
        if place is not None:
            place.hold(0)
            if id(place) in self.model:
                self.model[id(place)] = (*self.model[id(place)][:2], 0)

    @rule(place=places)
    def leave(self, place: Place | None) -> None:
        if place is not None:
            place.leave()
            self.model.pop(id(place), None)

    @rule(place=consumes(places))
    def leave_twice(self, place: Place | None) -> None:
        self.leave(place)
        self.leave(place)

    @invariant()
    def they_agree(self) -> None:
        found = self.model.values()
        keys, tenants = {k for k, _, _ in found}, {t for _, t, _ in found}
        size = sum(s for _, _, s in found)
        assert repr(self.bounds) == (
            f"<Bounds {len(found)} requests, {size} bytes, {len(keys)} keys, {len(tenants)} tenants>"
        )


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
