"""A customer's own report in another currency, with a rate card and at cost."""

import json
from fractions import Fraction

import pytest

from gateway.costs.owner import Owner
from gateway.costs.periods import Period, local_time, month_of, zone
from gateway.costs.prices.exchange_rates import ExchangeRateError
from gateway.costs.reports.customer_report import customer_text
from gateway.costs.reports.report import Question
from gateway.units import DAY
from tests.support.ledger_rows import exchange_rate
from tests.unit.gateway.costs.selling.sold import ENGINE, NOW, OCTOBER, RATE, arrive_late, close_october, fill

EURO = Fraction("0.913456789")


def fill_ledger(ledger):
    fill(ledger)
    exchange_rate(ledger, "0.913456789", OCTOBER)
    close_october(ledger)
    arrive_late(ledger)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def question(tenant, of="2026-11"):
    return Question(month_of(of), ("tenant", "adapter", "day"), (tenant,))


def report(ledger, tenant, currency=None, of="2026-11"):
    text, _ = customer_text(ledger, question(tenant, of), now=NOW, owner=Owner(tenant, 0), currency=currency)
    return json.loads(text)


@pytest.mark.parametrize("of", ["2026-10", "2026-11"])
@pytest.mark.parametrize(("tenant", "by"), [("acme", "rate_card"), ("bolt", "cost")])
def test_every_amount_is_converted_and_nothing_else_shows(ledger, tenant, by, of):
    own, euro = report(ledger, tenant, of=of), report(ledger, tenant, "EUR", of=of)
    assert (own["currency"], euro["currency"], euro["priced_by"]) == ("USD", "EUR", by)
    pairs = [*zip(own["rows"], euro["rows"], strict=True), (own["totals"], euro["totals"])]
    pairs += zip(own["corrections"]["rows"], euro["corrections"]["rows"], strict=True)
    assert len(pairs) > 1
    for before, after in pairs:
        assert Fraction(after["cost"]) == Fraction(before["cost"]) * EURO
        assert after["prompt_tokens"] == before["prompt_tokens"]
    said = json.dumps(euro)
    for hidden in (ENGINE, RATE, "gpu_hours", "amount_cents", "billed_cents", "invoice"):
        assert hidden not in said, hidden


def test_without_a_rate_a_customer_is_told_no_command(ledger):
    with pytest.raises(ExchangeRateError, match="ask your provider") as refused:
        report(ledger, "acme", "JPY")
    assert "florin" not in str(refused.value)


def test_local_days_have_their_price_too(ledger):
    """Rows of local days had the price of UTC days, or none."""
    zone_ = zone("Asia/Tokyo")
    within = Period(OCTOBER, OCTOBER + 2 * DAY)
    whole = Question(within, ("tenant",), ("acme",))
    days = Question(within, ("tenant", "day"), ("acme",), local=local_time(within, zone_))
    costs = []
    for asked in (whole, days):
        text, _ = customer_text(ledger, asked, now=NOW, owner=Owner("acme", 0))
        found = json.loads(text)
        costs.append(sum(Fraction(row["cost"]) for row in found["rows"]))
        assert Fraction(found["totals"]["cost"]) == costs[-1] > 0
    assert costs[0] == costs[1]
