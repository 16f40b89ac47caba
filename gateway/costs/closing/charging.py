"""What a closed month charges by rate cards, beside what it cost: the figures that its hash covers."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from gateway.costs.closing.settlement import CENT, Settlement, rounded
from gateway.costs.prices.amounts import decimal_text
from gateway.costs.prices.book import PriceBook
from gateway.costs.selling.cards import RateCards
from gateway.costs.selling.charges import (
    MINIMUM_SKU,
    MonthCharges,
    MonthCorrection,
    TenantMonth,
    batch_document,
    exact,
    kind_document,
    price_id,
    residency_document,
)
from gateway.costs.selling.posted import tenant_months

LATE_RECORDS = "usage that was recorded or changed after the month was closed"
COST_CHANGED = "costs that changed after the month was closed"


def add_charges(
    connection: Connection, book: PriceBook, of: str, cards: RateCards, settled: Settlement
) -> None:
    """Adds `charges` to the statements of tenants that pay by a rate card. `book`: for rows without a frozen
    rate."""
    costs = {name: units(made["cost"]) for name, made in settled.statements.items()}
    shares: dict[tuple[str, str], int] = {}
    for name, made in settled.statements.items():
        for line in made["lines"]:
            if line["kind"] == "allocated" and line["correction"]:
                key = name, line["corrects"]
                shares[key] = shares.get(key, 0) + units(line["cost"])
    for name, whole in tenant_months(connection, book, of, cards, costs, shares).items():
        if name in settled.statements:
            settled.statements[name]["charges"] = charges_document(whole)


def units(cost: str) -> int:
    """A decimal as a whole number of 10**-15."""
    return int(Decimal(cost).scaleb(15))


def charges_document(whole: TenantMonth) -> dict[str, Any]:
    """Each amount exactly and in cents. The sum is rounded once, half up; its parts by largest remainder, so
    that they sum to it: first tokens, residency, minimum and corrections, then the kinds of tokens."""
    current = whole.current
    parts: dict[str, int] = {}
    if current is None:
        parts["cost"] = whole.cost
    else:
        parts |= {"tokens": sum(kind.amount for kind in current.kinds), "minimum": current.top_up}
        if current.resident:  # no key without, so that the documents of earlier months stay as they were
            parts["residency"] = current.residency
        if current.batch_discount:  # likewise
            parts["batch"] = current.batch_discount
    parts |= {f"priced {of}": changed.amount for of, changed in whole.corrections.items()}
    parts |= {f"cost {of}": cost for of, cost in whole.corrected_cost.items()}
    cents = (2 * whole.amount + CENT) // (2 * CENT)
    amounts = rounded(parts, cents)
    lines = []
    if current is None:
        lines.append(_line({"kind": "cost"}, whole.cost, amounts["cost"]))
    else:
        lines += _month(current, amounts)
    lines += [
        _line(_correction(of, changed), changed.amount, amounts[f"priced {of}"])
        for of, changed in whole.corrections.items()
    ]
    lines += [
        _line({"kind": "correction", "month": of, "reason": COST_CHANGED}, cost, amounts[f"cost {of}"])
        for of, cost in whole.corrected_cost.items()
    ]
    card = None if current is None else current.card
    return {
        "card": None if card is None else card.name,
        "card_from": None if card is None else card.valid_from,
        "exact": exact(whole.amount),
        "amount_cents": cents,
        "lines": lines,
    }


def _line(made: dict[str, Any], amount: int, cents: int) -> dict[str, Any]:
    return {**made, "exact": exact(amount), "amount_cents": cents}


def _month(charges: MonthCharges, amounts: Mapping[str, int]) -> list[dict[str, Any]]:
    kinds = rounded({n: kind.amount for n, kind in enumerate(charges.kinds)}, amounts["tokens"])
    lines = [
        _line(kind_document(charges.card, kind), kind.amount, kinds[n])
        for n, kind in enumerate(charges.kinds)
    ]
    if charges.resident:
        lines.append(_line(residency_document(charges), charges.residency, amounts["residency"]))
    if charges.batch_discount:
        lines.append(_line(batch_document(charges), charges.batch_discount, amounts["batch"]))
    if charges.top_up:
        made = {
            "kind": "minimum",
            "sku": MINIMUM_SKU,
            "price": price_id(charges.card, "minimum"),
            "monthly_minimum": decimal_text(charges.card.minimum_micros, 6),
        }
        lines.append(_line(made, charges.top_up, amounts["minimum"]))
    return lines


def _correction(of: str, changed: MonthCorrection) -> dict[str, Any]:
    tokens = changed.tokens
    return {
        "kind": "correction",
        "month": of,
        "reason": LATE_RECORDS,
        "card": changed.after.card.name,
        "input_tokens": tokens.input,
        "cached_tokens": tokens.cached,
        "output_tokens": tokens.output,
    }
