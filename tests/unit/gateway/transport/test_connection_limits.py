from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.observability.metric_names import METRICS
from gateway.transport.connection_limits import (
    CLOSE_REASONS,
    SWEEP_SECONDS,
    ConnectionLimits,
    Connections,
    Mark,
    Phase,
    network_of,
    overdue,
)

LIMITS = ConnectionLimits(
    header_timeout=10, body_timeout=20, write_timeout=30, keep_alive=40, rate=100, connections=4,
    connections_per_address=2, headers=10, header_bytes=1000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "seconds", "transferred", "late"),
    [
        (Phase.HEAD, 9.9, 0, False),
        (Phase.HEAD, 10, 0, True),
        (Phase.IDLE, 39.9, 0, False),
        (Phase.IDLE, 40, 0, True),
        (Phase.BODY, 19.9, 0, False),
        (Phase.BODY, 20, 1999, True),
        (Phase.BODY, 20, 2000, False),
        (Phase.READER, 29.9, 0, False),
        (Phase.READER, 30, 2999, True),
        (Phase.READER, 30, 3000, False),
        (Phase.SERVER, 1e9, 0, False),
    ],
)
def test_overdue(phase: Phase, seconds: float, transferred: int, late: bool):
    before, now = Mark(phase, 1, 500, 1000.0), Mark(phase, 1, 500 + transferred, 1000.0 + seconds)
    assert overdue(before, now, LIMITS)[0] is late


def test_each_phase_and_each_request_has_its_own_time():
    before = Mark(Phase.HEAD, 1, 0, 0.0)
    for now in (Mark(Phase.BODY, 1, 0, 1e6), Mark(Phase.HEAD, 2, 0, 1e6)):
        assert overdue(before, now, LIMITS) == (False, now)


def test_the_rate_is_measured_over_each_window_anew():
    """What was sent quickly at first does not pay for a trickle afterwards."""
    mark = Mark(Phase.BODY, 1, 0, 0.0)
    late, mark = overdue(mark, Mark(Phase.BODY, 1, 1_000_000, 20.0), LIMITS)
    assert not late
    for second in range(21, 40):
        late, mark = overdue(mark, Mark(Phase.BODY, 1, 1_000_000, float(second)), LIMITS)
        assert not late
    assert overdue(mark, Mark(Phase.BODY, 1, 1_000_100, 40.0), LIMITS)[0]


class FakeConnection:
    def __init__(self, address: str = "a") -> None:
        self.address = address
        self.mark: Mark | None = None
        self.phase, self.transferred = Phase.HEAD, 0
        self.expired: list[Phase] = []

    def progress(self, now: float) -> Mark:
        return Mark(self.phase, 0, self.transferred, now)

    def expire(self, phase: Phase) -> None:
        self.expired.append(phase)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def closed() -> list[str]:
    return []


@pytest.fixture
async def connections(clock: Clock, closed: list[str]):
    made = Connections(LIMITS, closed.append, clock=clock)
    yield made
    made.open.clear()
    if made._timer is not None:
        made._timer.cancel()


def sweep(connections: Connections, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += SWEEP_SECONDS
        connections.sweep()


async def test_the_sweep_expires_who_is_late_and_nobody_else(
    connections: Connections, clock: Clock, closed: list[str]
):
    silent, reading, working = FakeConnection(), FakeConnection(), FakeConnection("b")
    reading.phase, working.phase = Phase.READER, Phase.SERVER
    for connection in (silent, reading, working):
        assert connections.admit(connection)
    for _ in range(100):
        sweep(connections, clock, 1)
        reading.transferred += 101
        if silent.expired:
            connections.forget(silent)
    assert silent.expired == [Phase.HEAD]
    assert reading.expired == working.expired == []
    assert closed == ["header_timeout"]


async def test_a_process_that_was_paused_blames_nobody(
    connections: Connections, clock: Clock, closed: list[str]
):
    connection = FakeConnection()
    connections.admit(connection)
    sweep(connections, clock, 5)
    clock.now += 3600  # SIGSTOP, or a suspended machine
    connections.sweep()
    sweep(connections, clock, 9)
    assert closed == []
    sweep(connections, clock, 1)
    assert closed == ["header_timeout"]


async def test_caps(connections: Connections, closed: list[str]):
    from_a = [FakeConnection(), FakeConnection()]
    assert all(connections.admit(connection) for connection in from_a)
    assert not connections.admit(FakeConnection())
    assert all(connections.admit(FakeConnection("")) for _ in range(2))  # Unix sockets have no address
    assert not connections.admit(FakeConnection("b"))
    assert closed == ["too_many_from_address", "too_many"]
    connections.forget(from_a[0])
    connections.forget(from_a[0])
    assert connections.admit(FakeConnection())
    assert not connections.admit(FakeConnection("c"))
    for connection in list(connections.open):
        connections.forget(connection)
    assert not connections._by_network


@pytest.mark.parametrize(
    ("one", "another", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_a_host_is_an_ipv4_address_or_an_ipv6_network(one: str, another: str, same: bool):
    assert (network_of(one) == network_of(another)) is same
    assert network_of(one)


async def test_connections_being_set_up_count(connections: Connections, closed: list[str]):
    counts: list[int] = []
    connections.on_change = counts.append
    assert connections.set_up("a", capped=True)
    assert connections.set_up("a", capped=True)
    assert not connections.set_up("a", capped=True)
    assert connections.set_up("a", capped=False), "it will be refused with an answer"
    assert connections.set_up("b", capped=True)
    assert not connections.set_up("c", capped=True)
    assert closed == ["too_many_from_address", "too_many"]
    connection = FakeConnection()
    assert connections.admit(connection)
    connections.is_set_up("a")
    assert not connections.set_up("a", capped=True)
    for address in ("a", "a", "b"):
        connections.is_set_up(address)
    connections.forget(connection)
    assert counts == [1, 2, 3, 4, 5, 4, 3, 2, 1, 0]
    assert connections.set_up("a", capped=True)


async def test_limits_may_change_while_connections_are_open(
    connections: Connections, clock: Clock, closed: list[str]
):
    connection = FakeConnection()
    connection.phase = Phase.IDLE
    connections.admit(connection)
    sweep(connections, clock, 5)
    connections.limits = replace(LIMITS, keep_alive=5)
    sweep(connections, clock, 2)
    assert set(connection.expired) == {Phase.IDLE}
    assert set(closed) == {"idle"}


def test_all_reasons_are_documented():
    assert {phase.value for phase in Phase if phase.value} < set(CLOSE_REASONS)
    for reason in CLOSE_REASONS:
        assert f"`{reason}`" in METRICS["florin_connections_closed_total"]
