"""Batches' tokens on the statement: at their own price, also what arrives after the month was closed."""

from __future__ import annotations

from fractions import Fraction

from gateway.costs.rollups.rollup import imbalance, roll
from gateway.costs.statement.page import statement_json
from gateway.metering.ledger.ledger import Ledger
from tests.support.ledger_rows import price as list_price
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import NOW, OCTOBER, RATE, attempt, close_october, up

COUNTS = (10_000, 2_345, 678)
"""Of an attempt: input, cached, output."""


def price(attempts: int) -> Fraction:
    rates = (Fraction("0.60"), Fraction("0.06"), Fraction("2.40"))
    return attempts * sum(count * rate for count, rate in zip(COUNTS, rates, strict=True)) / 10**6


def charges(ledger: Ledger, month: str) -> dict:
    return statement_json(ledger, "acme", month, issuer="Nordlicht", now=NOW, known=True)["charges"]


def test_a_month_with_batches(ledger_with):
    ledger = ledger_with()
    list_price(ledger, "H100", RATE)
    made = [attempt(f"r{n}", "acme", OCTOBER + n) for n in range(5)]
    lines = [attempt(f"b{n}", "acme", OCTOBER + n)._replace(service_tier="batch") for n in range(3)]
    waste = attempt("w", "acme", OCTOBER)._replace(service_tier="batch", billable=False, outcome="orphaned")
    ledger.insert([*made, *lines, waste])
    up(ledger, OCTOBER)
    sell(ledger, "acme", batch_percent=40)
    roll(ledger, NOW)
    close_october(ledger)
    october = charges(ledger, "2026-10")
    assert Fraction(october["exact"]) == price(5) + price(3) * 40 / 100
    [discount] = [line for line in october["lines"] if line["kind"] == "batch_discount"]
    assert Fraction(discount["exact"]) == -price(3) * 60 / 100
    assert sum(line["amount_cents"] for line in october["lines"]) == october["amount_cents"]

    late = attempt("late", "acme", OCTOBER)._replace(service_tier="batch")
    ledger.insert([late, attempt("late too", "acme", OCTOBER)])
    roll(ledger, NOW)
    november = charges(ledger, "2026-11")
    assert Fraction(november["exact"]) == price(1) * 40 / 100 + price(1)
    assert charges(ledger, "2026-10") == october
    assert imbalance(ledger) == 0
