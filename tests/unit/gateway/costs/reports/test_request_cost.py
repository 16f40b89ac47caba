"""What one request cost, against the report: shares of all requests of an hour are the hour."""

from collections import Counter
from decimal import Decimal

import pytest
from sqlalchemy import insert

from gateway.costs.owner import Owner
from gateway.costs.periods import Period
from gateway.costs.reports.report import Question, cost_report
from gateway.costs.reports.request_cost import request_cost
from gateway.costs.rollups.rollup import roll
from gateway.metering.ledger.schema import ledger_state
from gateway.units import HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.month import NOVEMBER, OCTOBER, fill
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.metering.make import record


@pytest.fixture
def ledger(ledger_with):
    """Nothing here depends on the kind of database."""
    return ledger_with()


def cost_of(ledger, request_id, *, tenant=None, now=NOVEMBER):
    return request_cost(ledger, request_id, owner=tenant and Owner(tenant, 0), now=now)


def test_all_requests_together_cost_what_the_report_says(ledger):
    fill(ledger)
    roll(ledger, NOVEMBER)
    report = cost_report(ledger, Question(Period(OCTOBER, NOVEMBER), by=("tenant",)), now=NOVEMBER)
    found = ledger.usage(start=OCTOBER, end=NOVEMBER, tenant=None, after=None, limit=1000)
    by_tenant, waste = Counter(), Decimal(0)
    for request_id, tenant in {r.request_id: r.tenant for r in found}.items():
        told = cost_of(ledger, request_id)
        assert (told["pending"], told["currency"]) == ("", "USD")
        by_tenant[tenant] += Decimal(told["cost"])
        waste += Decimal(told["retry_waste"])
        own = cost_of(ledger, request_id, tenant=tenant)
        assert own == {name: told[name] for name in told if name not in {"retry_waste", "shares"}}
    assert dict(by_tenant) == {row["tenant"]: Decimal(row["cost"]) for row in report["rows"]}
    assert waste == Decimal(report["retry_waste"]["totals"]["cost"]) > 0


def test_what_is_not_settled_says_why(ledger):
    price(ledger, "H100", "2.00")
    early, dear = record("early", dispatched=OCTOBER + 1), record("dear", dispatched=OCTOBER, gpu_type="B200")
    ledger.insert([early, dear])
    assert cost_of(ledger, "early", now=OCTOBER + HOUR - 1)["pending"] == "hour_not_over"
    assert cost_of(ledger, "early", now=OCTOBER + HOUR)["pending"] == "hour_not_computed"
    roll(ledger, NOVEMBER)
    alone = cost_of(ledger, "early", now=OCTOBER + HOUR)
    assert (alone["pending"], alone["cost"]) == ("", alone["shares"][0]["cost"])
    assert cost_of(ledger, "dear")["cost"] is None
    assert cost_of(ledger, "early", tenant="bolt") is None
    assert cost_of(ledger, "never") is None
    ledger.insert([record("late", dispatched=OCTOBER + 5)])
    assert cost_of(ledger, "early")["pending"] == "hour_not_computed"
    roll(ledger, NOVEMBER)
    assert Decimal(cost_of(ledger, "early")["cost"]) < Decimal(alone["cost"])


def test_an_hour_without_all_its_records_is_left_out_and_that_is_said(ledger):
    """Retention removes what ended before it; who ran across that time would get the others' share, too."""
    price(ledger, "H100", "3.60")
    turn = OCTOBER + HOUR
    across = record("across", dispatched=turn - 10_000_000, ended=turn + 10_000_000)
    ledger.insert([across, record("late", dispatched=turn - 20_000_000, ended=turn - 1)])
    roll(ledger, NOVEMBER)
    second = cost_of(ledger, "across")["shares"][1]
    with ledger.write() as connection:
        connection.execute(insert(ledger_state).values(name="pruned_before", value=turn))
    told = cost_of(ledger, "across")
    assert (told["pending"], told["shares"], told["cost"]) == ("records_removed", [second], second["cost"])
    assert (cost_of(ledger, "late")["pending"], cost_of(ledger, "late")["cost"]) == ("records_removed", None)
    assert cost_of(ledger, "across", now=turn)["pending"] == "records_removed"


def test_a_customer_sees_no_cost_of_a_request_that_a_card_covers_in_part(ledger):
    price(ledger, "H100", "3.60")
    sell(ledger, "acme", since="2026-11", name="standard")
    turn = {"dispatched": NOVEMBER - 30_000_000, "ended": NOVEMBER + 10_000_000}
    ledger.insert([record("across", **turn), record("twice", dispatched=NOVEMBER - HOUR)])
    ledger.insert([record("twice", 2, dispatched=NOVEMBER + HOUR), record("before", dispatched=OCTOBER)])
    roll(ledger, NOVEMBER + 2 * HOUR)
    own = {
        name: cost_of(ledger, name, tenant="acme", now=NOVEMBER + 2 * HOUR) for name in ("across", "twice")
    }
    assert {name: (one["priced_by"], one["cost"]) for name, one in own.items()} == {
        "across": ("rate_card", "0.000018"), "twice": ("rate_card", None),
    }  # fmt: skip
    assert cost_of(ledger, "before", tenant="acme")["priced_by"] == "cost"


def test_a_request_that_engines_refused_costs_nothing(ledger):
    refused = {"outcome": "rejected", "billable": False, "engine": "", "gpu_type": "", "gpu_count": 0}
    ledger.insert([record("refused", dispatched=OCTOBER, **refused)])
    assert (cost_of(ledger, "refused")["cost"], cost_of(ledger, "refused")["pending"]) == ("0.00", "")


def test_rereading_to_resume_a_stream_is_waste(ledger):
    price(ledger, "H100", "2.00")
    begun = record("cut", outcome="engine_error", dispatched=OCTOBER)
    ledger.insert([begun, record("cut", 2, outcome="resumed", dispatched=OCTOBER + 2_000_000)])
    roll(ledger, NOVEMBER)
    told = cost_of(ledger, "cut")
    assert [(s["attempt"], s["billable"]) for s in told["shares"]] == [(1, True), (2, False), (2, True)]
    assert Decimal(told["retry_waste"]) > 0
