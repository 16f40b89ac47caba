"""What is in flight is counted once in and once out, whatever happens between."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.admission.in_flight import InFlightLimits, Limit, Reservation
from gateway.errors import FlorinError
from tests.support.search import examples

KEY, TENANT, WORKER = Limit(2, 100), Limit(3, 150), Limit(5, 250)


def bounds() -> InFlightLimits:
    return InFlightLimits(key=KEY, tenant=TENANT, worker=WORKER)


@pytest.mark.parametrize(
    ("present", "code", "status", "words"),
    [
        ([("k1", "a")] * 2, "too_many_requests", 429, "key's limit of 2 requests in flight"),
        (
            [("k2", "a")] * 2 + [("k3", "a")],
            "too_many_requests",
            429,
            "tenant's limit of 3 requests in flight",
        ),
        (
            [("k2", "b")] * 2 + [("k3", "b")] + [("k4", "c")] * 2,
            "worker_full",
            503,
            "limit of 5 requests in flight",
        ),
    ],
    ids=["key", "tenant", "worker"],
)
def test_one_too_many_is_refused_until_another_leaves(present, code, status, words):
    counted = bounds()
    reservations = [counted.reserve(key, tenant) for key, tenant in present]
    with pytest.raises(FlorinError, match=words) as caught:
        counted.reserve("k1", "a")
    assert (caught.value.code, caught.value.status, caught.value.retry_after) == (code, status, 1)
    reservations[0].release()
    reservations[0].release()
    counted.reserve("k1", "a").release()
    with_one_more = counted.reserve("k1", "a")
    with pytest.raises(FlorinError):
        counted.reserve("k1", "a")
    with_one_more.release()


def test_bytes_are_bounded_and_come_back_when_the_body_is_let_go():
    counted = bounds()
    first, second = counted.reserve("k1", "a"), counted.reserve("k1", "a")
    first.grow(80)
    with pytest.raises(FlorinError, match="This key's limit of 100 bytes of bodies in flight"):
        second.grow(21)
    second.grow(20)
    first.hold(0)
    second.grow(80)
    other, third = counted.reserve("k2", "a"), counted.reserve("k3", "b")
    with pytest.raises(FlorinError, match="This tenant's limit of 150 bytes of bodies in flight"):
        other.grow(51)
    other.grow(50)
    third.grow(100)
    fourth = counted.reserve("k4", "c")
    with pytest.raises(FlorinError, match="limit of 250 bytes of bodies in flight") as caught:
        fourth.grow(1)
    assert caught.value.code == "worker_full"
    fourth.release()
    for reservation in (first, second, other, third):
        reservation.release()
    assert repr(counted) == "<InFlightLimits 0 requests, 0 bytes, 0 keys, 0 tenants>"


class Machine(RuleBasedStateMachine):
    """Against a list of what is in flight."""

    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.bounds = bounds()
        self.model: dict[int, tuple[str, str, int]] = {}
        self.kept: list[Reservation] = []

    def load(self, key: str, tenant: str) -> list[tuple[int, int, Limit]]:
        found = list(self.model.values())
        return [
            (sum(k == key for k, _, _ in found), sum(s for k, _, s in found if k == key), KEY),
            (sum(t == tenant for _, t, _ in found), sum(s for _, t, s in found if t == tenant), TENANT),
            (len(found), sum(s for _, _, s in found), WORKER),
        ]

    @rule(target=reservations, tenant=st.sampled_from("ab"), number=st.integers(1, 2))
    def enter(self, tenant: str, number: int) -> Reservation | None:
        key = f"{tenant}{number}"
        full = any(have >= limit.requests for have, _, limit in self.load(key, tenant))
        try:
            reservation = self.bounds.reserve(key, tenant)
        except FlorinError:
            assert full
            return None
        assert not full
        self.kept.append(reservation)
        self.model[id(reservation)] = key, tenant, 0
        return reservation

    @rule(reservation=reservations, size=st.integers(0, 90))
    def grow(self, reservation: Reservation | None, size: int) -> None:
        if reservation is None:
            return
        if id(reservation) not in self.model:
            reservation.grow(size)
            return
        key, tenant, held = self.model[id(reservation)]
        over = any(have + size > limit.bytes for _, have, limit in self.load(key, tenant))
        try:
            reservation.grow(size)
        except FlorinError:
            assert over
        else:
            assert not over
            self.model[id(reservation)] = key, tenant, held + size

    @rule(reservation=reservations)
    def let_go(self, reservation: Reservation | None) -> None:
        if reservation is not None:
            reservation.hold(0)
            if id(reservation) in self.model:
                self.model[id(reservation)] = (*self.model[id(reservation)][:2], 0)

    @rule(reservation=reservations)
    def leave(self, reservation: Reservation | None) -> None:
        if reservation is not None:
            reservation.release()
            self.model.pop(id(reservation), None)

    @rule(reservation=consumes(reservations))
    def leave_twice(self, reservation: Reservation | None) -> None:
        self.leave(reservation)
        self.leave(reservation)

    @invariant()
    def they_agree(self) -> None:
        found = self.model.values()
        keys, tenants = {k for k, _, _ in found}, {t for _, t, _ in found}
        size = sum(s for _, _, s in found)
        assert repr(self.bounds) == (
            f"<InFlightLimits {len(found)} requests, {size} bytes, {len(keys)} keys, {len(tenants)} tenants>"
        )


TestMachine = Machine.TestCase
TestMachine.settings = settings(examples(30), stateful_step_count=40)
