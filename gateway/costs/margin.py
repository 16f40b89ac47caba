"""What each customer pays less what it cost: the margin, exactly. Not for customers.

A customer's cost is that of its delivered usage and of the unused time that the month's policy allocates to
it. What nobody is charged (retries, and unused time that no policy allocates) is the operator's; it reduces
the margin of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.costs.closing.charging import units
from gateway.costs.closing.preview import MonthSettlement, settlement_now
from gateway.costs.prices.amounts import decimal_text
from gateway.metering.ledger.ledger import Ledger


def month_margin(ledger: Ledger, of: str) -> dict[str, Any]:
    """The margin of a month as a document: of a closed month from its sealed figures, of an open one as it
    would be closed now. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        settled = settlement_now(connection, of)
    return margin(settled)


def margin(settled: MonthSettlement) -> dict[str, Any]:
    """Pure. Costs are unknown (null) where a price of GPU-time is missing."""
    statements = settled.settlement.statements
    rows = [_row(name, made, settled) for name, made in sorted(statements.items())]
    totals = settled.settlement.totals
    price = sum(units(row["price"]) for row in rows)
    missing = bool(settled.missing)
    whole = units(totals["cost"])
    return {
        "month": settled.month,
        "state": settled.state,
        "currency": settled.currency,
        "policy": settled.terms.policy.name,
        "missing_prices": [" ".join(filter(None, series)) for series in settled.missing],
        "rows": rows,
        "not_charged": {
            name: None if missing else totals[name]["cost"] for name in ("retry_waste", "unallocated")
        },
        "totals": {"price": _text(price), **_margin(price, None if missing else whole)},
    }


def _row(tenant: str, made: Mapping[str, Any], settled: MonthSettlement) -> dict[str, Any]:
    charges = made.get("charges")
    cost = units(made["cost"])
    price = cost if charges is None else units(charges["exact"])
    pools = {(line["gpu_type"], line["region"], line["purchase"]) for line in made["lines"]}
    known = not pools & set(settled.missing)
    unused = sum(units(line["cost"]) for line in made["lines"] if line["kind"] == "allocated")
    cents = made["amount_cents"] if charges is None else charges["amount_cents"]
    return {
        "tenant": tenant,
        "rate_card": None if charges is None else charges["card"],
        "price": _text(price),
        "amount_cents": cents,
        "cost_excluding_unused_time": _text(cost - unused) if known else None,
        "cost_of_unused_time": _text(unused) if known else None,
        **_margin(price, cost if known else None),
    }


def _margin(price: int, cost: int | None) -> dict[str, Any]:
    """`margin_percent` of the price, rounded to two places; null without a price."""
    if cost is None:
        return {"cost": None, "margin": None, "margin_percent": None}
    part = None
    if price > 0:
        # rounded half up
        part = decimal_text((2 * (price - cost) * 10_000 + price) // (2 * price), 2)
    return {"cost": _text(cost), "margin": _text(price - cost), "margin_percent": part}


def _text(amount: int) -> str:
    return decimal_text(amount, 15)
