import json

import pytest

from gateway.runtime.clock import AHEAD, TOLERANCE, Clock, agreed

S = 1_000_000
HOUR = 3600 * S
T = 500_000 * HOUR


class Host:
    """A machine with a clock that can be set."""

    def __init__(self) -> None:
        self.up = 1000 * S
        self.off = 0
        self.boot = "one"

    def true(self) -> int:
        return T + self.up

    def clock(self, path=None, **options) -> Clock:
        told = {"uptime": lambda: self.up, "system": lambda: self.true() + self.off, "boot": self.boot}
        return Clock(path, **(told | options))

    def look(self, clock, **others) -> None:
        """`others`: by how much other clocks are wrong."""
        shown = {"system": self.off, **others}
        clock.compare({name: self.true() + off - clock.now() for name, off in shown.items()})

    def watch(self, clock, seconds, **others) -> None:
        for _ in range(0, seconds, 10):
            self.up += 10 * S
            self.look(clock, **others)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "clock.json"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ({}, None),
        ({"system": HOUR}, None),
        ({"system": HOUR, "redis": 0}, None),
        ({"system": HOUR, "redis": HOUR}, HOUR),
        ({"system": HOUR, "redis": 0, "ledger": 0}, None),
        ({"system": HOUR, "redis": -HOUR, "ledger": 0}, None),
        ({"system": 0, "redis": -HOUR, "ledger": -HOUR - S}, -HOUR),
        ({"system": HOUR + S, "redis": HOUR, "ledger": 0}, HOUR + S),
        ({"system": TOLERANCE, "redis": TOLERANCE, "ledger": TOLERANCE}, None),
    ],
)
def test_two_agreeing_clocks_are_followed(shown, expected):
    assert agreed(shown) == expected


def test_a_step_of_the_hosts_clock_moves_nothing_and_is_shown(host, path):
    clock = host.clock(path)
    host.look(clock, redis=0)
    assert list(clock.conditions()) == []
    for off in (2 * HOUR, -HOUR, 0, 2 * HOUR):
        host.off = off
        host.watch(clock, 3600, redis=0, ledger=0)
        assert (clock.now(), clock.era, clock.since) == (host.true(), 0, 0)
    [condition] = clock.conditions()
    assert (condition.code, condition.subject) == ("clock_off", "system")
    assert condition.message == "This host's clock is 7,200 s ahead of Florin's."


def test_a_worker_that_starts_later_goes_by_the_same_clock(host, path):
    first = host.clock(path)
    host.look(first, redis=0)
    host.off = 2 * HOUR
    later = host.clock(path)
    assert (later.now(), later.since) == (host.true(), 0)


def test_what_two_other_clocks_agree_on_is_followed_in_time_on_all_workers_at_once(host, path):
    one, other = host.clock(path), host.clock(path)
    for clock in (one, other):
        host.look(clock, redis=0)
    host.off = -HOUR
    host.watch(one, 290, redis=-HOUR)
    assert one.now() == host.true()
    host.watch(one, 20, redis=-HOUR)
    assert one.now() == host.true()  # announced
    host.look(other, redis=-HOUR)
    host.up += AHEAD - 1
    assert one.now() == other.now() == host.true()
    host.up += 1
    assert (one.now(), one.era) == (other.now(), other.era) == (host.true() - HOUR, 1)
    assert one.since == other.since == one.now()
    host.watch(one, 600, redis=-HOUR)
    assert one.era == 1
    assert list(one.conditions()) == []
    restarted = host.clock(path)
    assert (restarted.now(), restarted.since) == (one.now(), one.since)


def test_a_disagreement_that_ends_in_time_is_not_followed(host, path):
    clock = host.clock(path)
    host.look(clock, redis=0)
    for _ in range(20):
        host.off = HOUR
        host.watch(clock, 250, redis=HOUR)
        host.off = 0
        host.watch(clock, 20, redis=0)
    assert (clock.now(), clock.era) == (host.true(), 0)


def test_an_unconfirmed_clock_counts_nothing_from_before_its_start(host, path):
    clock = host.clock(path)
    started = host.true()
    host.watch(clock, 30)  # Redis is away
    assert clock.since == started
    host.look(clock, redis=0)
    assert clock.since == 0


def test_a_gateway_that_starts_with_a_wrong_clock_is_set_right_at_once(host, path):
    host.off = 2 * HOUR
    clock = host.clock(path)
    host.up += S
    host.look(clock, redis=0, ledger=0)
    assert (clock.now(), clock.since) == (host.true(), host.true())


def test_one_other_clock_is_no_reason_to_follow(host, path):
    host.off = 2 * HOUR
    clock = host.clock(path)
    host.watch(clock, 3600, redis=0)
    assert clock.now() == host.true() + 2 * HOUR
    assert clock.since == T + 1000 * S + 2 * HOUR
    assert [c.subject for c in clock.conditions()] == ["redis"]


def test_after_a_reboot_the_hosts_clock_counts_anew(host, path):
    host.look(host.clock(path), redis=0)
    host.boot, host.up, host.off = "two", 50 * S, 3 * S
    clock = host.clock(path)
    assert clock.now() == host.true() + 3 * S
    assert clock.since == clock.now()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot": "one"}', '{"boot": "one", "confirmed": true, "eras": [["x"]]}',
             '{"boot": "one", "confirmed": true, "eras": []}', '{"boot": 1, "confirmed": 1, "eras": 1}', "\0"]
)  # fmt: skip
def test_a_damaged_file_is_replaced(host, path, text):
    path.parent.mkdir()
    path.write_text(text)
    clock = host.clock(path)
    host.look(clock, redis=0)
    assert clock.now() == host.true()
    assert json.loads(path.read_text())["confirmed"] is True
