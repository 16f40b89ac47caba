import asyncio
import itertools
from types import SimpleNamespace

import pytest

from gateway.admission import overload
from gateway.admission.overload import (
    _SHARES_TICKS,
    CALM_TICKS,
    MAX_TICKETS,
    TICK_SECONDS,
    TOLERATED_LATE_TICKS,
    LoopWatch,
    Sender,
)

LATE, ON_TIME, STOLEN = (0.2, 0.2), (0.0, 0.01), (0.2, 0.01)


def overloaded() -> LoopWatch:
    watch = LoopWatch()
    for _ in range(TOLERATED_LATE_TICKS + 1):
        watch.note(*LATE)
    assert watch.overloaded
    return watch


def test_a_loop_that_is_late_again_and_again_is_overloaded():
    watch = LoopWatch()
    for tick in [
        *[LATE] * TOLERATED_LATE_TICKS,
        ON_TIME,
        *[LATE] * TOLERATED_LATE_TICKS,
        STOLEN,
        *[LATE] * TOLERATED_LATE_TICKS,
    ]:
        watch.note(*tick)
        assert not watch.overloaded
    watch.note(*LATE)
    assert watch.overloaded


def test_an_overload_is_over_when_nothing_has_been_refused_for_a_while():
    watch = overloaded()
    tickets = [watch.issue_ticket() for _ in range(MAX_TICKETS)]
    assert None not in tickets
    for _ in range(CALM_TICKS):
        watch.note(*ON_TIME)
    assert watch.issue_ticket() is None
    for _ in range(CALM_TICKS + 1):
        watch.note(*ON_TIME)
        assert watch.overloaded
    watch.note(*ON_TIME)
    assert not watch.overloaded
    assert watch.issue_ticket() is not None


def test_who_comes_while_so_many_have_begun_is_refused():
    watch = LoopWatch()
    early = [watch.issue_ticket() for _ in range(MAX_TICKETS + 10)]
    assert None not in early
    for _ in range(TOLERATED_LATE_TICKS + 1):
        watch.note(*LATE)
    assert watch.issue_ticket() is None
    for ticket in early[:10]:
        ticket.close()
        ticket.close()
    assert watch.issue_ticket() is None
    early[10].pause()  # it waits for its client
    last = watch.issue_ticket()
    assert last is not None
    early[10].resume()  # whoever has been taken stays
    assert watch.open_tickets == MAX_TICKETS + 1
    for ticket in [*early, last]:
        ticket.close()
    assert watch.open_tickets == 0


@pytest.mark.parametrize(("refused", "seconds"), [(0, 1), (1, 2), (2, 3), (3, 4), (1000, 20)])
def test_retry_after_follows_from_the_share_that_is_refused(refused, seconds):
    watch = overloaded()
    for _ in range(200):
        watch.issue_ticket().close()
        held = [watch.issue_ticket() for _ in range(MAX_TICKETS)]
        assert [watch.issue_ticket() for _ in range(refused * (MAX_TICKETS + 1))].count(None) == refused * (
            MAX_TICKETS + 1
        )
        for ticket in held:
            ticket.close()
        watch.note(*ON_TIME)
        watch.overloaded = True
    assert watch.retry_after == seconds


@pytest.mark.parametrize(("worked", "expected"), [(0.2, True), (0.01, False)])
async def test_the_loops_own_work_is_what_counts(monkeypatch, worked, expected):
    """Each tick comes 0.2 s late; in between, the loop has worked, or others kept it from the processor."""
    now, processor = itertools.count(0.0, TICK_SECONDS + 0.2), itertools.count(0.0, worked)
    clocks = SimpleNamespace(monotonic=lambda: next(now), thread_time=lambda: next(processor))
    monkeypatch.setattr(overload, "time", clocks)
    monkeypatch.setattr(overload, "TICK_SECONDS", 0.0)  # of the real loop
    watch = LoopWatch()
    noted = 0
    original = watch.note

    def note(late: float, busy: float) -> None:
        nonlocal noted
        noted += 1
        original(late, busy)

    watch.note = note
    task = asyncio.create_task(watch.run())
    while noted <= TOLERATED_LATE_TICKS + 1:
        await asyncio.sleep(0)
    assert watch.overloaded is expected
    task.cancel()
    await asyncio.wait([task])


def hold(watch: LoopWatch, sender: Sender, most: int = 100) -> int:
    """How many tickets the sender gets, which it keeps."""
    return sum(watch.issue_ticket(sender) is not None for _ in range(most))


def test_an_address_that_asks_most_often_leaves_the_others_their_share():
    watch = overloaded()
    flood, customer = Sender("203.0.113.9", 1, refused=False), Sender("198.51.100.7", 2, refused=False)
    assert hold(watch, flood) == MAX_TICKETS  # nobody else asks
    assert hold(watch, customer) == MAX_TICKETS // 2
    assert hold(watch, flood) == 0
    assert watch.open_tickets == MAX_TICKETS * 3 // 2


def test_credentials_share_what_their_network_has():
    """Many customers behind one proxy; and one address with a thousand made-up keys."""
    watch = overloaded()
    assert [hold(watch, Sender("proxy", key, refused=False)) for key in range(4)] == [32, 16, 10, 6]
    watch = overloaded()
    for key in range(1000):
        watch.issue_ticket(Sender("203.0.113.9", key, refused=False))
    assert hold(watch, Sender("198.51.100.7", 2, refused=False)) == MAX_TICKETS // 2


def test_who_was_refused_last_is_refused_first():
    watch = overloaded()
    assert hold(watch, Sender("a", 1, refused=True)) == MAX_TICKETS // 4
    assert hold(watch, Sender("a", 1, refused=False)) == MAX_TICKETS * 3 // 4


def test_a_ticket_that_is_closed_gives_its_share_back_once():
    watch = overloaded()
    sender = Sender("a", 1, refused=False)
    tickets = [watch.issue_ticket(sender) for _ in range(MAX_TICKETS)]
    assert watch.issue_ticket(sender) is None
    tickets[0].pause()
    tickets[0].resume()
    assert watch.issue_ticket(sender) is None
    for ticket in tickets:
        ticket.close()
        ticket.close()
    assert hold(watch, sender) == MAX_TICKETS


def test_who_has_not_asked_for_a_while_has_no_share():
    watch = overloaded()
    hold(watch, Sender("a", 1, refused=False), 1)
    for _ in range(2 * _SHARES_TICKS):
        watch.note(*LATE)
    assert hold(watch, Sender("b", 2, refused=False)) == MAX_TICKETS
