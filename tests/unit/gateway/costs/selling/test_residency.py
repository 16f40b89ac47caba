"""Adapters that are resident: how long, what it costs, and that a closed month keeps it."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from sqlalchemy import delete, select, update

from gateway.costs.closing.closing import close
from gateway.costs.margins.margin import month_margin
from gateway.costs.rollups.rollup import roll
from gateway.costs.selling.residency import of_tenants, residency_of
from gateway.costs.statement.page import statement_page
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import period_residency, periods, residency_spans
from gateway.units import HOUR
from tests.support.ledger_rows import put, residency_span
from tests.unit.gateway.costs.export.month import file_rows
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import END, NOVEMBER, NOW, OCTOBER, arrive_late, fill, statement

MINUTE = HOUR // 60


def stay(ledger: Ledger, version: str, start: int, end: int, engine: str = "e1") -> None:
    put(ledger, residency_spans, residency_span(version, start, end, engine=engine))


def lines(ledger, tenant, of="2026-10"):
    return {line["kind"]: line for line in statement(ledger, tenant, of)["charges"]["lines"]}


def fill_ledger(ledger):
    """acme/chat is on two engines at once, then away for a while, and stays into November; acme/idle, bolt's
    adapter and corgi's were never called in October."""
    fill(ledger)
    roll(ledger, NOW)
    sell(ledger, "acme", name="resident", free_input=10_000, residency_micros=12_500)
    sell(ledger, "delta", name="resident-only", residency_micros=999_999)
    stay(ledger, "acme/chat@v1", OCTOBER - HOUR, OCTOBER + 10 * HOUR)
    stay(ledger, "acme/chat@v2", OCTOBER + 5 * HOUR, OCTOBER + 12 * HOUR, engine="e2")
    stay(ledger, "acme/chat@v2", END - 40 * 24 * HOUR, NOVEMBER + 3 * HOUR)
    stay(ledger, "acme/idle@v1", OCTOBER, OCTOBER + 90 * MINUTE + 7_000_000)
    stay(ledger, "acme/glimpsed@v1", OCTOBER, OCTOBER + 1_000_000)
    stay(ledger, "bolt/x@v1", OCTOBER, NOVEMBER)
    stay(ledger, "delta/x@v1", OCTOBER, OCTOBER + 30 * MINUTE)


def fill_and_close(ledger):
    fill_ledger(ledger)
    close(ledger, "2026-10", now=NOW, by="test")


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def test_hours_are_those_with_a_version_somewhere(ledger):
    with ledger.read() as connection:
        october, november = (residency_of(connection, of) for of in ("2026-10", "2026-11"))
    late = NOVEMBER - (END - 40 * 24 * HOUR)
    assert october == {
        "acme/chat": 12_000 + late * 1000 // HOUR,
        "acme/idle": 1_501,  # 90 minutes and 7 seconds, rounded down to thousandths of an hour
        "bolt/x": 31 * 24_000,
        "delta/x": 500,
    }
    assert november == {"acme/chat": 3_000}
    assert of_tenants(november) == {"acme": {"acme/chat": 3_000}}


def test_the_statement_shows_hours_price_and_amount(ledger):
    made = statement(ledger, "acme")
    line = next(one for one in made["charges"]["lines"] if one["kind"] == "residency")
    assert Decimal(line["hours"]) * Decimal(line["per_hour"]) == Decimal(line["exact"])
    assert abs(line["amount_cents"] - Decimal(line["exact"]) * 100) < 1
    assert [one["adapter"] for one in line["adapters"]] == ["acme/chat", "acme/idle"]
    assert sum(Decimal(one["hours"]) for one in line["adapters"]) == Decimal(line["hours"])
    assert sum(one["amount_cents"] for one in made["charges"]["lines"]) == made["amount_cents"]
    page = statement_page(ledger, "acme", "2026-10", issuer="Nordlicht", now=NOW, known=True)
    for said in ("Residency of 2 adapters", f"{line['hours']} h", "0.0125 per hour", "sampled once a minute"):
        assert said in page, said


@pytest.mark.parametrize("tenant", ["acme", "delta"])
def test_the_customer_s_file_sums_to_the_statement(ledger, tenant):
    rows = file_rows(
        ledger, "focus-1.2", "chargeback", tenants=(tenant,), customer=tenant, granularity="daily"
    )
    for cost in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"):
        assert sum(Decimal(row[cost]) for row in rows) == Decimal(
            statement(ledger, tenant)["charges"]["exact"]
        )
    for row in rows:
        for price in ("ListUnitPrice", "ContractedUnitPrice"):
            assert (not row[price]) == (row["ChargeCategory"] != "Usage")
            exact = Decimal(row[price] or 0) * Decimal(row["PricingQuantity"] or 0)
            assert not row[price] or exact == Decimal(row["ListCost"])
    assert {row["ChargeCategory"] for row in rows if Decimal(row["BilledCost"]) < 0} <= {"Credit"}


def test_nothing_jumps_at_the_close_and_the_hours_are_sealed(ledger):
    before = [statement(ledger, tenant) for tenant in ("acme", "bolt", "corgi", "delta")]
    close(ledger, "2026-10", now=NOW, by="test")
    after = [statement(ledger, tenant) for tenant in ("acme", "bolt", "corgi", "delta")]
    for one, other in zip(before, after, strict=True):
        assert (one["charges"], one["amount_cents"]) == (other["charges"], other["amount_cents"])
    [verified] = verify(ledger, "2026-10")
    assert all(check.ok for check in verified.checks)
    # What is sampled later is of November, and changes nothing of October.
    stay(ledger, "acme/chat@v3", NOVEMBER, NOVEMBER + 9 * HOUR)
    assert lines(ledger, "acme")["residency"] == after[0]["charges"]["lines"][3]
    assert lines(ledger, "acme", "2026-11")["residency"]["hours"] == "9.00"


def residency_holds(ledger):
    [verified] = verify(ledger, "2026-10", quick=True)
    return {check.name: check.ok for check in verified.checks}["residency"]


@pytest.mark.parametrize(
    "change",
    [
        delete(residency_spans).where(residency_spans.c.version == "acme/idle@v1"),
        update(residency_spans).values(seen=residency_spans.c.seen + HOUR),
        delete(period_residency).where(period_residency.c.adapter == "acme/idle"),
        update(period_residency).where(period_residency.c.adapter == "acme/idle").values(milli_hours=1),
        update(period_residency).where(period_residency.c.adapter == "bolt/x").values(adapter="acme/x"),
    ],
)
def test_verify_finds_changed_hours(ledger_with, change):
    ledger = ledger_with(fill_and_close)
    with ledger.write() as connection:
        connection.execute(change)
    assert residency_holds(ledger) is False


def test_a_month_closed_by_force_may_lack_the_end_of_a_stay_and_no_more(ledger):
    stay(ledger, "acme/last@v1", NOVEMBER - HOUR, NOVEMBER - MINUTE, engine="e3")
    close(ledger, "2026-10", now=NOVEMBER, by="test", force=True)
    last = update(residency_spans).where(residency_spans.c.version == "acme/last@v1")
    for seen in (NOVEMBER, NOVEMBER + 10 * HOUR):  # of which only the first minute is October's
        with ledger.write() as connection:
            connection.execute(last.values(seen=seen))
        assert residency_holds(ledger)
    stay(ledger, "acme/forged@v1", NOVEMBER - HOUR, NOVEMBER, engine="e4")
    assert residency_holds(ledger) is False


@pytest.mark.parametrize("closed", [False, True])
def test_margins_by_adapter_sum_to_the_tenants(ledger, closed):
    sell(ledger, "corgi", name="small-2", minimum_micros=25_000_000, residency_micros=1)
    close(ledger, "2026-10", now=NOW, by="test", policy="even")
    arrive_late(ledger)
    made = month_margin(ledger, "2026-10" if closed else "2026-11", by_adapter=True)
    for row in made["rows"]:
        mine = [one for one in made["adapters"] if one["tenant"] == row["tenant"]]
        for name in ("price", "cost", "margin"):
            assert sum(Fraction(one[name]) for one in mine) == Fraction(row[name]), name
    if closed:
        by = {(one["tenant"], one["adapter"]): one for one in made["adapters"]}
        idle, chat = by["acme", "acme/idle"], by["acme", "acme/chat"]
        assert (Fraction(idle["cost"]), Fraction(idle["price"])) == (
            0,
            Fraction("1.501") * Fraction("0.0125"),
        )
        assert Fraction(chat["margin"]) == Fraction(chat["price"]) - Fraction(chat["cost"])
        assert Fraction(by["acme", None]["price"]) == -Fraction("0.60") * 10_000 / 10**6  # the allowance
        assert Fraction(by["corgi", None]["price"]) == 25  # the minimum
        assert Fraction(by["bolt", "bolt/chat"]["margin"]) == 0


def test_a_month_that_was_closed_before_there_was_such_a_price_is_verified_as_before(ledger):
    close(ledger, "2026-10", now=NOW, by="test")
    with ledger.write() as connection:
        document = json.loads(connection.execute(select(periods.c.document)).scalar_one())
        del document["terms"]["residency"]
        connection.execute(update(periods).values(document=json.dumps(document)))
    assert residency_holds(ledger) is None
