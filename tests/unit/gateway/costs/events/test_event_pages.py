"""Events: each once, in order of commit, with ids that never change; and their forms for billing systems."""

import pytest

from gateway.costs.events.event_pages import NotClosedError, cost_events, usage_events
from gateway.costs.events.formats import cloudevents, lago, stripe
from gateway.costs.periods import month_of
from gateway.metering.records import Outcome
from gateway.units import HOUR
from tests.support.ledger_rows import mark_closed, price
from tests.unit.gateway.costs.rolled import row, write
from tests.unit.gateway.metering.make import record

SOURCE = "florin/florin"
T = 500_000 * HOUR


def everything(ledger, limit=2, after=None, since=0):
    found = []
    while True:
        events, after, more = usage_events(ledger, source=SOURCE, after=after, since=since, limit=limit)
        found += events
        if not more:
            return found, after


def ids(events):
    return [event["data"]["request_id"] for event in events]


def test_a_late_record_is_behind_no_cursor(ledger):
    ledger.insert([record(f"r{n}", dispatched=T, ended=T + n) for n in range(5)])
    first, after = everything(ledger)
    assert len(first) == 5
    assert everything(ledger, after=after) == ([], after)
    ledger.insert([record("late", dispatched=T - 9 * HOUR, ended=T - 8 * HOUR)])
    assert ids(everything(ledger, after=after)[0]) == ["late"]
    assert sorted(ids(everything(ledger, limit=1000)[0])) == sorted([*ids(first), "late"])


def test_asking_again_gives_the_same(ledger):
    ledger.insert([record(f"r{n}", dispatched=T, ended=T + n) for n in range(5)])
    assert everything(ledger) == everything(ledger, limit=100)
    found = {event["id"] for event in everything(ledger)[0]}
    assert len(found) == 5


def test_what_nobody_pays_for_is_no_event_and_old_records_can_be_left_out(ledger):
    ledger.insert(
        [
            record("paid", dispatched=T, ended=T + 9),
            record("waste", dispatched=T, ended=T + 9, billable=False, outcome="failover"),
            record("old", dispatched=T - 5, ended=T - 1),
        ]
    )
    assert ids(everything(ledger, since=T)[0]) == ["paid"]


def test_an_event_has_the_tokens_that_are_billed(ledger):
    counts = {"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 7}
    of = {**counts, "dispatched": T, "ended": T + 1}
    labels = {"end_user": "u1", "tag": "nightly", "cost_centre": "sales"}
    resumed = record("b", **of, **labels, key_id="k1", outcome=Outcome.RESUMED.value)
    assert everything(ledger) == ([], None)
    ledger.insert([record("a", **of), resumed])
    by_request = {event["data"]["request_id"]: event for event in everything(ledger)[0]}
    event = by_request["a"]
    envelope = {"specversion": "1.0", "source": SOURCE, "type": "florin.usage", "subject": "acme"}
    assert event.items() >= envelope.items()
    tokens = ("input_tokens", "cached_input_tokens", "output_tokens")
    assert [event["data"][name] for name in tokens] == [10, 4, 7]
    assert [event["data"][name] for name in ("end_user", "tag", "cost_centre")] == [None, None, None]
    assert [by_request["b"]["data"][name] for name in tokens] == [0, 0, 7]  # its prompt was billed before
    assert by_request["b"]["data"].items() >= {"key": "k1", **labels}.items()


EVENT = {
    "specversion": "1.0", "id": "id-1", "source": SOURCE, "type": "florin.usage", "subject": "acme",
    "time": "2026-11-01T00:00:01.500000Z", "datacontenttype": "application/json",
    "data": {"adapter": "acme/x", "input_tokens": 10, "cached_input_tokens": 4, "output_tokens": 0},
}  # fmt: skip


def test_the_forms_of_an_event():
    assert list(cloudevents(EVENT, {})) == [EVENT]
    assert [e["subject"] for e in cloudevents(EVENT, {"acme": "cus_1"})] == ["cus_1"]
    assert list(lago(EVENT, {"acme": "sub_1"})) == [
        {
            "transaction_id": "id-1", "external_subscription_id": "sub_1", "code": "florin_usage",
            "timestamp": "1793491201.500", "properties": EVENT["data"],
        }
    ]  # fmt: skip
    assert list(stripe(EVENT, {"acme": "cus_1"})) == [
        {
            "event_name": name, "identifier": f"id-1:{field}", "timestamp": 1793491201,
            "payload": {"stripe_customer_id": "cus_1", "value": value},
        }
        for name, field, value in (
            ("florin.input_tokens", "input_tokens", "6"),
            ("florin.cached_input_tokens", "cached_input_tokens", "4"),
        )
    ]  # fmt: skip


def test_costs_are_events_only_of_closed_months(ledger):
    october = month_of("2026-10").start // HOUR
    price(ledger)
    write(ledger, row(october), row(october, bucket="idle", nano_gpu_hours=5 * 10**8))
    with pytest.raises(NotClosedError, match="2026-10 is not closed"):
        cost_events(ledger, "2026-10", source=SOURCE)
    mark_closed(ledger, "2026-10", policy="proportional")
    [event] = cost_events(ledger, "2026-10", source=SOURCE)
    assert (event["type"], event["subject"], event["time"]) == ("florin.cost", "acme", "2026-11-01T00:00:00Z")
    assert (event["data"]["cost"], event["data"]["unused_time_cost"]) == ("2.00", "1.00")
    assert cost_events(ledger, "2026-10", source=SOURCE) == [event]
