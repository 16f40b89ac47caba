"""What each customer pays less what it cost: the margin, exactly. Not for customers.

A customer's cost is that of its delivered usage and of the unused time that the month's policy allocates to
it. By adapter, the price is that of its usage at list prices and of its residency, and the cost that of its
usage; what a tenant pays and costs besides (allowance, tiers, discounts, minimum, unused time, corrections)
is a row of its own, so that the rows sum to the tenant.

What nobody is charged (retries, and unused time that no policy allocates) is the operator's; it reduces the
margin of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection

from gateway.costs.closing.documents import Charges, ResidencyCharge, StatementLine, TenantStatement
from gateway.costs.closing.preview import MonthSettlement, settlement_now
from gateway.costs.cost_lines import read_lines
from gateway.costs.periods import month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.selling.charges import hours_price
from gateway.costs.selling.posted import PRICED_BY, key_of, tokens_of
from gateway.metering.ledger.ledger import Ledger
from gateway.units import NOTHING, Amount, amount_text, decimal_text, half_up, total


def month_margin(ledger: Ledger, month: str, *, by_adapter: bool = False) -> dict[str, Any]:
    """The margin of a month as a document: of a closed month from its sealed figures, of an open one as it
    would be closed now. `by_adapter`: also `adapters`. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        settled = settlement_now(connection, month)
        prices = _adapter_prices(connection, settled) if by_adapter else {}
    return {**margin(settled), **({"adapters": adapter_margins(settled, prices)} if by_adapter else {})}


def margin(settled: MonthSettlement) -> dict[str, Any]:
    """Pure. Costs are unknown (null) where a price of GPU time is missing."""
    statements, totals = settled.settlement.statements, settled.settlement.totals
    price = total(statement.price for statement in statements.values())
    known = not settled.missing
    not_charged = {"retry_waste": totals.retry_waste, "unallocated": totals.unallocated}
    return {
        "month": settled.month,
        "state": settled.state,
        "currency": settled.currency,
        "policy": settled.terms.policy.name,
        "missing_prices": [" ".join(filter(None, series)) for series in settled.missing],
        "rows": [_row(tenant, statement, settled) for tenant, statement in sorted(statements.items())],
        "not_charged": {
            name: amount_text(part.cost) if known else None for name, part in not_charged.items()
        },
        "not_charged_cents": {
            name: part.amount_cents if known else None for name, part in not_charged.items()
        },
        "totals": {
            "price": amount_text(price),
            "price_cents": sum(statement.price_cents for statement in statements.values()),
            "cost_cents": totals.amount_cents if known else None,
            **_margin(price, totals.cost if known else None),
        },
    }


AdapterPrices = Mapping[str, Mapping[str, Amount]]
"""Tenant with a rate card → adapter → its usage at list prices and its residency, if it had any."""


def _adapter_prices(connection: Connection, settled: MonthSettlement) -> AdapterPrices:
    prices: dict[str, dict[str, Amount]] = {}
    for tenant, statement in settled.settlement.statements.items():
        if statement.card is not None:
            assert statement.charges is not None
            prices[tenant] = _residency_prices(statement.charges)
    by = ("tenant", *PRICED_BY)
    for line in read_lines(connection, PriceBook([]), month_of(settled.month), by, corrections=False):
        tenant, adapter, base_model = line.keys
        card = settled.cards.card(tenant, settled.month)
        if line.bucket == "usage" and tenant in prices and card is not None:
            price = card.list_price(key_of(line, adapter, base_model), tokens_of(line))
            prices[tenant][adapter] = Amount(prices[tenant].get(adapter, 0) + price)
    return prices


def _residency_prices(charges: Charges) -> dict[str, Amount]:
    return {
        resident.adapter: hours_price(line.per_hour, resident.hours)
        for line in charges.lines
        if isinstance(line, ResidencyCharge)
        for resident in line.adapters
    }


def adapter_margins(settled: MonthSettlement, prices: AdapterPrices) -> list[dict[str, Any]]:
    """The rows of each tenant by adapter, the last with `adapter` null: the rest. Pure."""
    rows: list[dict[str, Any]] = []
    for tenant, statement in sorted(settled.settlement.statements.items()):
        rows += _adapters(tenant, statement, settled, prices.get(tenant))
    return rows


def _adapters(
    tenant: str, statement: TenantStatement, settled: MonthSettlement, prices: Mapping[str, Amount] | None
) -> Iterator[dict[str, Any]]:
    """`prices`: None: the tenant pays the cost."""
    known = _known(statement, settled)
    lines: dict[str, list[StatementLine]] = {adapter: [] for adapter in prices or ()}
    for line in statement.lines:
        if line.kind == "usage" and not line.correction:
            lines.setdefault(line.adapter, []).append(line)
    price_left, cost_left = statement.price, statement.cost
    for adapter, own in sorted(lines.items()):
        cost = total(line.cost for line in own)
        price = cost if prices is None else prices.get(adapter, NOTHING)
        price_left, cost_left = Amount(price_left - price), Amount(cost_left - cost)
        yield _adapter(tenant, adapter, price, cost if known else None)
    if price_left or cost_left or not known:
        yield _adapter(tenant, None, price_left, cost_left if known else None)


def _adapter(tenant: str, adapter: str | None, price: Amount, cost: Amount | None) -> dict[str, Any]:
    return {"tenant": tenant, "adapter": adapter, "price": amount_text(price), **_margin(price, cost)}


def _known(statement: TenantStatement, settled: MonthSettlement) -> bool:
    return not {line.series for line in statement.lines} & set(settled.missing)


def _row(tenant: str, statement: TenantStatement, settled: MonthSettlement) -> dict[str, Any]:
    known = _known(statement, settled)
    shares = [line for line in statement.lines if line.kind == "allocated"]
    unused = total(line.cost for line in shares)
    return {
        "tenant": tenant,
        "rate_card": statement.card,
        "price": amount_text(statement.price),
        "amount_cents": statement.price_cents,
        "cost_excluding_unused_time": amount_text(Amount(statement.cost - unused)) if known else None,
        "cost_of_unused_time": amount_text(unused) if known else None,
        # as the statements are rounded, also of a tenant that does not pay its cost
        "cost_cents": statement.amount_cents if known else None,
        "unused_time_cents": sum(line.amount_cents or 0 for line in shares) if known else None,
        **_margin(statement.price, statement.cost if known else None),
    }


def _margin(price: Amount, cost: Amount | None) -> dict[str, Any]:
    """`margin_percent` of the price, rounded to two places; null without a price."""
    if cost is None:
        return {"cost": None, "margin": None, "margin_percent": None}
    margin = Amount(price - cost)
    percent = decimal_text(half_up(margin * 10_000, price), 2) if price > 0 else None
    return {"cost": amount_text(cost), "margin": amount_text(margin), "margin_percent": percent}
