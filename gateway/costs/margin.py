"""What each customer pays less what it cost: the margin, exactly. Not for customers.

A customer's cost is that of its delivered usage and of the unused time that the month's policy allocates to
it. By adapter, the price is that of its tokens and its residency and the cost that of its usage; what a
tenant pays and costs besides (allowance, minimum, unused time, corrections) is a row of its own, so that the
rows sum to the tenant.

What nobody is charged (retries, and unused time that no policy allocates) is the operator's; it reduces the
margin of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from gateway.costs.closing.charging import units
from gateway.costs.closing.preview import MonthSettlement, settlement_now
from gateway.costs.prices.amounts import decimal_text
from gateway.metering.ledger.ledger import Ledger


def month_margin(ledger: Ledger, of: str, *, by_adapter: bool = False) -> dict[str, Any]:
    """The margin of a month as a document: of a closed month from its sealed figures, of an open one as it
    would be closed now. `by_adapter`: also `adapters`. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        settled = settlement_now(connection, of)
    return {**margin(settled), **({"adapters": adapter_margins(settled)} if by_adapter else {})}


def margin(settled: MonthSettlement) -> dict[str, Any]:
    """Pure. Costs are unknown (null) where a price of GPU time is missing."""
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
        "not_charged_cents": {
            name: None if missing else totals[name]["amount_cents"] for name in ("retry_waste", "unallocated")
        },
        "totals": {
            "price": _text(price),
            "price_cents": sum(row["amount_cents"] for row in rows),
            "cost_cents": None if missing else totals["amount_cents"],
            **_margin(price, None if missing else whole),
        },
    }


def adapter_margins(settled: MonthSettlement) -> list[dict[str, Any]]:
    """The rows of each tenant by adapter, the last with `adapter` null: the rest. Pure."""
    rows: list[dict[str, Any]] = []
    for tenant, made in sorted(settled.settlement.statements.items()):
        rows += _adapters(tenant, made, settled)
    return rows


def _adapters(tenant: str, made: Mapping[str, Any], settled: MonthSettlement) -> Iterator[dict[str, Any]]:
    whole = _row(tenant, made, settled)
    charges = made.get("charges")
    prices = None if charges is None or charges["card"] is None else _Prices(charges["lines"])
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for line in made["lines"]:
        if line["kind"] == "usage" and not line["correction"]:
            lines.setdefault(line["adapter"], []).append(line)
    if prices is not None:
        lines |= {adapter: [] for adapter in prices.resident if adapter not in lines}
    price_left = units(whole["price"])
    cost_left = None if whole["cost"] is None else units(whole["cost"])
    for adapter, of_one in sorted(lines.items()):
        cost = sum(units(line["cost"]) for line in of_one)
        price = cost if prices is None else prices.of(adapter, of_one)
        price_left -= price
        cost_left = None if cost_left is None else cost_left - cost
        yield _adapter(tenant, adapter, price, None if cost_left is None else cost)
    if price_left or cost_left != 0:
        yield _adapter(tenant, None, price_left, cost_left)


def _adapter(tenant: str, adapter: str | None, price: int, cost: int | None) -> dict[str, Any]:
    return {"tenant": tenant, "adapter": adapter, "price": _text(price), **_margin(price, cost)}


class _Prices:
    """The rates and the resident adapters of a month's charges."""

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._rates = {
            line["kind"]: _whole(line["per_million"], 6) for line in lines if "per_million" in line
        }
        self.resident: dict[str, int] = {}
        """Adapter → the price of its residency."""
        for line in lines:
            if line["kind"] == "residency":
                hour = _whole(line["per_hour"], 6) * 10**6
                self.resident = {one["adapter"]: _whole(one["hours"], 3) * hour for one in line["adapters"]}

    def of(self, adapter: str, lines: Iterable[Mapping[str, Any]]) -> int:
        """Before allowance and minimum, in 10**-15 of the currency."""
        price = self.resident.get(adapter, 0)
        for line in lines:
            counts = {
                "input": line["prompt_tokens"] - line["cached_tokens"],
                "cached": line["cached_tokens"],
                "output": line["completion_tokens"],
            }
            price += sum(count * self._rates[kind] * 1000 for kind, count in counts.items())
        return price


def _whole(number: str, places: int) -> int:
    return int(Decimal(number).scaleb(places))


def _row(tenant: str, made: Mapping[str, Any], settled: MonthSettlement) -> dict[str, Any]:
    charges = made.get("charges")
    cost = units(made["cost"])
    price = cost if charges is None else units(charges["exact"])
    pools = {(line["gpu_type"], line["region"], line["purchase"]) for line in made["lines"]}
    known = not pools & set(settled.missing)
    shares = [line for line in made["lines"] if line["kind"] == "allocated"]
    unused = sum(units(line["cost"]) for line in shares)
    cents = made["amount_cents"] if charges is None else charges["amount_cents"]
    return {
        "tenant": tenant,
        "rate_card": None if charges is None else charges["card"],
        "price": _text(price),
        "amount_cents": cents,
        "cost_excluding_unused_time": _text(cost - unused) if known else None,
        "cost_of_unused_time": _text(unused) if known else None,
        # as the statements are rounded, also of a tenant that does not pay its cost
        "cost_cents": made["amount_cents"] if known else None,
        "unused_time_cents": sum(line["amount_cents"] for line in shares) if known else None,
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
