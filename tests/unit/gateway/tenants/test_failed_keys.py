"""Who guesses keys is slowed down, and nobody else."""

from __future__ import annotations

from gateway.tenants.failed_keys import MOST_ADDRESSES, FailedKeys

SECOND = 1_000_000


class Clock:
    now = 1_790_000_000_000_000

    def __call__(self) -> int:
        return self.now


def test_an_address_waits_until_its_window_ends():
    clock, answers = Clock(), []
    keys = FailedKeys(limit=3, window=60, clock=clock)
    keys.on_failure = answers.append
    assert [keys.record("192.0.2.1") for _ in range(4)] == [0, 0, 0, 60]
    clock.now += 59 * SECOND + 1
    assert keys.record("192.0.2.1") == 1
    assert keys.record("192.0.2.2") == 0  # another
    clock.now += SECOND
    assert keys.record("192.0.2.1") == 0  # a new window
    assert answers == [False, False, False, True, True, False, False]


def test_addresses_of_one_client_count_together_and_nobody_s_do_not():
    keys = FailedKeys(limit=1, clock=Clock())
    assert keys.record("2001:db8:1:2::1") == 0
    assert keys.record("2001:db8:1:2:ffff::9") == 60
    assert keys.record("2001:db8:1:3::1") == 0
    assert (keys.record("::ffff:192.0.2.1"), keys.record("192.0.2.1")) == (0, 60)
    assert [keys.record("") for _ in range(3)] == [0, 0, 0]
    off = FailedKeys(limit=0, clock=Clock())
    assert [off.record("192.0.2.1") for _ in range(3)] == [0, 0, 0]
    assert repr(off) == "<FailedKeys of 0 addresses>"


def test_memory_is_bounded_and_who_failed_last_is_remembered():
    keys = FailedKeys(limit=1, clock=Clock())
    keys.record("192.0.2.1")
    for n in range(MOST_ADDRESSES - 1):
        keys.record(f"10.0.{n // 256}.{n % 256}")
    assert keys.record("192.0.2.1") == 60  # and is now the latest
    for n in range(MOST_ADDRESSES - 1):
        keys.record(f"10.1.{n // 256}.{n % 256}")
    assert keys.record("192.0.2.1") == 60
    assert repr(keys) == f"<FailedKeys of {MOST_ADDRESSES} addresses>"
