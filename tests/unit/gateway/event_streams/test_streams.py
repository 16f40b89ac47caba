"""What waits in each stream, on each kind of database: nothing is passed over, and positions move only as
they may."""

import pytest

from adapters.store.protocol.registry import AuditEntry, AuditNote
from gateway.costs.periods import iso
from gateway.event_streams import streams
from gateway.event_streams.streams import advanced, begin, note_failure, read_page, read_status, replay, skip
from gateway.metering.ledger.audit_log import logged, record, ship
from gateway.units import HOUR
from tests.unit.gateway.metering.make import record as usage

NOW = 1_790_000_000_000_000
T = 500_000 * HOUR


def entry(n, subject="acme/a", at=NOW, **details):
    return logged(AuditEntry(f"{at // 1000}-{n}", AuditNote("key:k", "adapter.add", subject, "v1", details)))


def take(ledger, name, limit=100):
    """One page, taken by the receiver. Returns the ids of its events; None: nothing waits."""
    page = read_page(ledger, name, source="florin/x", limit=limit)
    if page is None:
        return None
    with ledger.write() as connection:
        page.advance(connection)
        advanced(connection, name, NOW)
    return [event["id"] for event in page.events]


def everything(ledger, name, limit=2):
    found = []
    while (ids := take(ledger, name, limit)) is not None:
        found += ids
    return found


def test_nothing_waits_before_the_stream_has_begun(ledger):
    ship(ledger, [entry(0)])
    ledger.insert([usage("old", dispatched=T, ended=T + 1)])
    assert read_status(ledger, "audit").begun_at is None
    for name in ("audit", "usage"):
        begin(ledger, name, NOW)
        assert take(ledger, name) is None
        assert read_status(ledger, name).waiting == 0


def test_audit_entries_wait_in_order_and_late_ones_are_not_passed_over(ledger):
    begin(ledger, "audit", NOW)
    ship(ledger, [entry(n) for n in range(5)])
    begin(ledger, "audit", NOW + 1)  # another worker
    with ledger.write() as connection:
        record(connection, "key:k", "price.add", "h100", {}, NOW + 9_000)
    status = read_status(ledger, "audit")
    assert (status.waiting, status.oldest, status.lag(NOW + 60_000_000)) == (6, NOW, 60.0)
    first = everything(ledger, "audit")
    assert len(first) == len(set(first)) == 6
    ship(ledger, [entry(n) for n in range(5)])  # a shipper that begins anew sends all again
    assert take(ledger, "audit") is None
    ship(ledger, [entry(0, at=NOW - HOUR)])
    assert len(take(ledger, "audit")) == 1


def test_an_audit_event(ledger):
    begin(ledger, "audit", NOW)
    made = entry(3, old=None, new={"é": 1})
    ship(ledger, [made, entry(4, subject="")])
    [event, other] = read_page(ledger, "audit", source="florin/x", limit=9).events
    assert event == {
        "specversion": "1.0",
        "id": f"{made.id}.{made.digest[:16]}",
        "source": "florin/x",
        "type": "florin.audit.adapter.add",
        "subject": "acme/a",
        "time": iso(NOW),
        "datacontenttype": "application/json",
        "data": {
            "id": made.id, "actor": "key:k", "action": "adapter.add", "subject": "acme/a", "version": "v1",
            "details": {"old": None, "new": {"é": 1}},
        },
    }  # fmt: skip
    assert "subject" not in other


def test_a_page_ends_before_it_is_too_large(ledger, monkeypatch):
    monkeypatch.setattr(streams, "PAGE_BYTES", 3000)
    begin(ledger, "audit", NOW)
    ship(ledger, [entry(n, text="x" * (5000 if n == 1 else 1000)) for n in range(4)])
    sizes = []
    while (ids := take(ledger, "audit")) is not None:
        sizes.append(len(ids))
    assert sizes == [1, 1, 2]


def test_usage_goes_on_where_it_stopped_and_skips_what_nobody_pays_for(ledger):
    begin(ledger, "usage", NOW)
    ledger.insert([usage(f"r{n}", dispatched=T, ended=T + n) for n in range(5)])
    ledger.insert([usage("waste", dispatched=T, ended=T + 9, billable=False, outcome="failover")])
    status = read_status(ledger, "usage")
    assert (status.waiting, status.oldest is not None) == (6, True)
    first = everything(ledger, "usage")
    assert len(first) == len(set(first)) == 5
    assert read_status(ledger, "usage").waiting == 0
    ledger.insert([usage("late", dispatched=T - HOUR, ended=T - HOUR + 1)])
    assert len(everything(ledger, "usage")) == 1


@pytest.mark.parametrize("name", ["audit", "usage"])
def test_a_page_that_was_not_taken_comes_again(ledger, name):
    begin(ledger, name, NOW)
    ship(ledger, [entry(n) for n in range(3)])
    ledger.insert([usage(f"r{n}", dispatched=T, ended=T + n) for n in range(3)])
    first = read_page(ledger, name, source="s", limit=2)
    note_failure(ledger, name, "status 503")
    assert read_status(ledger, name).failure == "status 503"
    replay(ledger, name, 0, actor="", now=NOW)
    assert read_status(ledger, name).failure == "status 503"  # of the last attempt, still
    assert read_page(ledger, name, source="s", limit=2).events == first.events
    assert first.more
    take(ledger, name)
    assert read_status(ledger, name).failure == ""


@pytest.mark.parametrize("name", ["audit", "usage"])
def test_replay_sends_again_with_the_same_ids_and_skip_gives_up(ledger, name):
    begin(ledger, name, NOW)
    days = [T + n * 24 * HOUR for n in range(4)]
    for n, at in enumerate(days):
        ship(ledger, [entry(n, at=at)])
        ledger.insert([usage(f"r{n}", dispatched=at - 5, ended=at)])
    first = everything(ledger, name)
    assert replay(ledger, name, days[2], actor="", now=NOW) == 2
    assert replay(ledger, name, days[2], actor="", now=NOW) == 0
    assert read_status(ledger, name).waiting == 2
    assert everything(ledger, name) == first[2:]
    assert replay(ledger, name, 0, actor="", now=NOW) == 4
    assert skip(ledger, name, days[3], actor="", now=NOW) == 3
    assert skip(ledger, name, days[1], actor="", now=NOW) == 0
    assert everything(ledger, name) == first[3:]
    assert skip(ledger, name, NOW, actor="", now=NOW) == 0


def test_replay_and_skip_are_audited_and_audited_events(ledger):
    begin(ledger, "audit", NOW)
    replay(ledger, "usage", T, actor="key:op", now=NOW)
    skip(ledger, "audit", NOW, actor="key:op", now=NOW + 1_000_000)
    events = read_page(ledger, "audit", source="s", limit=9).events
    assert [(e["type"], e["subject"]) for e in events] == [
        ("florin.audit.events.replay", "usage"), ("florin.audit.events.skip", "audit")
    ]  # fmt: skip


def test_a_replay_during_a_delivery_is_not_undone(ledger):
    begin(ledger, "usage", NOW)
    ledger.insert([usage(f"r{n}", dispatched=T, ended=T + n) for n in range(4)])
    take(ledger, "usage", 2)
    page = read_page(ledger, "usage", source="s", limit=2)
    replay(ledger, "usage", 0, actor="", now=NOW)
    with ledger.write() as connection:
        page.advance(connection)
    assert len(everything(ledger, "usage")) == 4


def test_what_is_stuck(ledger):
    begin(ledger, "audit", NOW)
    assert read_status(ledger, "audit").stuck(NOW + HOUR) == 0
    ship(ledger, [entry(0, at=NOW - HOUR), entry(1)])
    minute = 60_000_000
    assert read_status(ledger, "audit").stuck(NOW + minute) == 60  # since it began
    take(ledger, "audit", 1)
    assert read_status(ledger, "audit").stuck(NOW + minute) == 60
    replay(ledger, "audit", 0, actor="", now=NOW + 2 * HOUR)  # old events, and still no alarm
    assert read_status(ledger, "audit").stuck(NOW + 2 * HOUR) == 0
