"""Engines that are dedicated to a tenant: their GPU-hours, what they cost, and that a closed month keeps it."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from sqlalchemy import delete, select, update

from gateway.costs.closing.closing import close
from gateway.costs.margins.margin import month_margin
from gateway.costs.proofs.charged import wrong_amounts
from gateway.costs.rollups.rollup import roll
from gateway.costs.selling.card_lines import CardLine
from gateway.costs.selling.cards import RateCardError, check_lines
from gateway.costs.selling.dedicated import dedicated_in
from gateway.costs.statement.page import statement_page
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.schema import engine_spans, period_dedicated, periods
from gateway.units import HOUR
from tests.support.ledger_rows import put
from tests.unit.gateway.costs.export.month import file_rows
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import NOVEMBER, NOW, OCTOBER, fill, statement

SECOND = HOUR // 3600
PRICES = {"input_micros": 1, "cached_micros": 1, "output_micros": 1}
B200_LINE = CardLine("fast", **PRICES, gpu_type="B200", gpu_hour_micros=7_123_457)
SEEN = {
    "a1": ("H100", 2, [(0, 10 * HOUR), (9 * HOUR, 12 * HOUR), (12 * HOUR + 59 * SECOND, 13 * HOUR)]),
    "a2": ("H100", 1, [(-HOUR, 7 * SECOND), (20 * HOUR, 20 * HOUR + 1)]),
    "a3": ("B200", 8, [(720 * HOUR, 760 * HOUR)]),
}
"""Engine of acme → GPU type, GPUs, when it was seen, from the start of October."""
HOURS = {"H100": Fraction(26) + Fraction(7, 3600), "B200": Fraction(24 * 8)}
"""In October. Two workers saw a1 at once, and the gap of less than a minute counts."""


def see(ledger, tenant, pool, start, end):
    engine, gpu_type, gpus = pool
    row = {"engine": engine, "gpu_type": gpu_type, "gpu_count": gpus, "started": start, "seen": end}
    rest = {"worker": "w", "phase": "up", "region": "", "purchase": "on_demand", "base_model": "base"}
    put(ledger, engine_spans, {**row, **rest, "tenant": tenant})


def fill_ledger(ledger):
    fill(ledger)
    sell(ledger, "acme", name="own", gpu_hour_micros=3_333_333, discount_percent=7, lines=(B200_LINE,))
    sell(ledger, "delta", name="idle", gpu_hour_micros=2_000_000)
    for engine, (gpu_type, gpus, times) in SEEN.items():
        for start, end in times:
            see(ledger, "acme", (engine, gpu_type, gpus), OCTOBER + start, OCTOBER + end)
    see(ledger, "delta", ("d1", "H100", 4), OCTOBER, OCTOBER + HOUR // 4)
    see(ledger, "bolt", ("b1", "H100", 1), OCTOBER, OCTOBER + HOUR)
    roll(ledger, NOW)


def fill_and_close(ledger):
    fill_ledger(ledger)
    close(ledger, "2026-10", now=NOW, by="test", allow_missing_prices=True)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def charged(ledger, tenant, month="2026-10"):
    return [
        line for line in statement(ledger, tenant, month)["charges"]["lines"] if line["kind"] == "dedicated"
    ]


def exact(hours, price):
    """Hours count in thousandths, rounded down."""
    return Fraction(int(hours * 1000), 1000) * Fraction(price)


def test_a_statement_charges_gpu_hours_times_their_price(ledger):
    own, fast = charged(ledger, "acme")
    assert Fraction(own["exact"]) == exact(HOURS["H100"], "3.333333")
    assert Fraction(fast["exact"]) == exact(HOURS["B200"], "7.123457")
    assert (own["hours"], own["gpus"]) == ("26.001", [{"gpu_type": "H100", "hours": "26.001"}])
    assert (fast["line"], fast["sku"]) == ("fast", "dedicated-gpus/fast")
    document = statement(ledger, "acme")
    by_kind = {line["kind"]: Fraction(line["exact"]) for line in document["charges"]["lines"]}
    before = sum(Fraction(line["exact"]) for line in document["charges"]["lines"]) - by_kind["discount"]
    assert abs(by_kind["discount"] + before * 7 / 100) < Fraction(1, 10**14)
    assert wrong_amounts(document) == []
    page = statement_page(ledger, "acme", "2026-10", issuer="Nordlicht", now=NOW, known=True)
    assert "Dedicated GPUs: B200, fast" in page
    assert "26.001 GPU-h" in page


def test_idle_engines_are_charged_and_those_without_a_price_are_not(ledger):
    assert statement(ledger, "delta")["amount_cents"] == 200
    assert statement(ledger, "bolt")["charges"] is None  # it has no card
    assert charged(ledger, "acme", "2026-11")[0]["line"] == "fast"  # of the hours in November


def test_files_and_margins_sum_to_the_statement(ledger):
    for tenant in ("acme", "delta"):
        rows = file_rows(ledger, "focus-1.2", "chargeback", tenants=(tenant,), customer=tenant)
        amount = Decimal(statement(ledger, tenant)["charges"]["exact"])
        assert sum(Decimal(row["BilledCost"]) for row in rows) == amount
    margin = month_margin(ledger, "2026-10", by_adapter=True)
    for row in margin["rows"]:
        parts = [part for part in margin["adapters"] if part["tenant"] == row["tenant"]]
        assert sum(Fraction(part["price"]) for part in parts) == Fraction(row["price"])


def test_a_closed_month_keeps_and_seals_the_hours(ledger):
    before = statement(ledger, "acme")["charges"]
    close(ledger, "2026-10", now=NOW, by="test", allow_missing_prices=True)
    see(ledger, "acme", ("late", "H100", 1), NOVEMBER, NOVEMBER + HOUR)
    assert statement(ledger, "acme")["charges"] == before
    [verified] = verify(ledger, "2026-10")
    assert {check.name: check.ok for check in verified.checks}["dedicated"] is True


@pytest.mark.parametrize(
    "change",
    [
        delete(engine_spans).where(engine_spans.c.engine == "d1"),
        update(engine_spans).where(engine_spans.c.engine == "a1").values(tenant="delta"),
        delete(period_dedicated).where(period_dedicated.c.tenant == "delta"),
        update(period_dedicated).where(period_dedicated.c.tenant == "delta").values(milli_hours=1),
        delete(period_dedicated),
    ],
)
def test_verify_finds_changed_hours(ledger_with, change):
    ledger = ledger_with(fill_and_close)
    with ledger.write() as connection:
        connection.execute(change)
    [verified] = verify(ledger, "2026-10", quick=True)
    assert {check.name: check.ok for check in verified.checks}["dedicated"] is False


@pytest.mark.parametrize("selectors", [{}, {"base_model": "base", "gpu_type": "H100"}, {"adapter": "acme/x"}])
def test_a_line_with_such_a_price_names_a_gpu_type_only(selectors):
    with pytest.raises(RateCardError):
        check_lines([CardLine("x", **PRICES, **selectors, gpu_hour_micros=1)])


def test_without_such_engines_terms_are_as_they_were(ledger_with):
    def fill_shared(ledger):
        fill(ledger)
        roll(ledger, NOW)
        close(ledger, "2026-10", now=NOW, by="test", allow_missing_prices=True)

    ledger = ledger_with(fill_shared)
    with ledger.read() as connection:
        document = json.loads(connection.execute(select(periods.c.document)).scalar_one())
        assert dedicated_in(connection, "2026-10") == {}
    assert "dedicated" not in document["terms"]
