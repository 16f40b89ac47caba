"""Reports in another currency: at one named rate, and still adding up exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gateway.costs.periods import month_of
from gateway.costs.prices.exchange_rates import ExchangeRateError, rate_nanos
from gateway.costs.reports.report import Question, cost_report
from gateway.costs.rollups.rollup import roll
from gateway.units import DAY
from tests.support.ledger_rows import exchange_rate
from tests.unit.gateway.costs.month import DECEMBER, NOVEMBER, OCTOBER, fill


def fill_and_roll(ledger):
    fill(ledger)
    roll(ledger, DECEMBER)


@pytest.fixture
def filled(ledger_with):
    return ledger_with(fill_and_roll)


def report(ledger, currency=None, now=DECEMBER, of="2026-10"):
    return cost_report(ledger, Question(month_of(of)), now=now, currency=currency)


def amounts(found):
    parts = [found[name]["totals"] for name in ("retry_waste", "idle", "startup", "headroom", "corrections")]
    return [Fraction(part["cost"]) for part in (*found["rows"], *parts)], Fraction(
        found["provisioned"]["cost"]
    )


def test_every_amount_is_converted_exactly(filled):
    exchange_rate(filled, "0.912345678", OCTOBER)
    before, after = report(filled), report(filled, "EUR")
    factor = Fraction("0.912345678")
    parts, whole = amounts(before)
    converted, converted_whole = amounts(after)
    assert converted == [part * factor for part in parts]
    assert converted_whole == whole * factor == sum(converted)
    assert after["currency"] == "EUR"
    assert after["exchange_rate"] == {
        "currency": "USD", "rate": "0.912345678", "valid_from": "2026-10-01", "source": "ECB",
        "changed_within": False,
    }  # fmt: skip
    for row, other in zip(before["utilization"], after["utilization"], strict=True):
        assert Fraction(other["idleness_cost"]) == Fraction(row["idleness_cost"]) * factor
        assert other["utilization"] == row["utilization"]
    price, other = before["unit_prices"][0], after["unit_prices"][0]
    assert Fraction(other["busy"]["output"]) == Fraction(price["busy"]["output"]) * factor
    assert [row["gpu_hours"] for row in after["rows"]] == [row["gpu_hours"] for row in before["rows"]]


def test_the_rate_is_that_of_the_end_of_the_period(filled):
    for text, day in (("0.9", OCTOBER - DAY), ("0.8", OCTOBER + DAY), ("0.7", NOVEMBER)):
        exchange_rate(filled, text, day)
    exchange_rate(filled, "0.85", OCTOBER + DAY, reason="published late", now=2)
    whole = report(filled, "EUR")["exchange_rate"]
    assert (whole["rate"], whole["valid_from"], whole["changed_within"]) == ("0.85", "2026-10-02", True)
    early = report(filled, "EUR", now=OCTOBER + 5)["exchange_rate"]
    assert (early["rate"], early["changed_within"]) == ("0.90", False)
    assert report(filled, "EUR", of="2026-11")["exchange_rate"]["rate"] == "0.70"


def test_without_a_rate_the_command_that_adds_it_is_named(filled):
    exchange_rate(filled, "1.1", OCTOBER, currency="EUR", target="USD")  # not inverted
    with pytest.raises(ExchangeRateError, match="florin exchange-rate add --from USD --to EUR"):
        report(filled, "EUR")
    assert report(filled, "USD") == report(filled)


@pytest.mark.parametrize("text", ["0", "x", "1e7", "0.1234567891"])
def test_what_is_no_exchange_rate(text):
    with pytest.raises(ExchangeRateError):
        rate_nanos(text)
