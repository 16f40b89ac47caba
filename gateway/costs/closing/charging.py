"""What a closed month charges by rate cards, beside what it cost: the figures that its hash covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TypedDict

from sqlalchemy import Connection

from gateway.costs.closing.documents import (
    BatchDiscount,
    Charge,
    Charges,
    CorrectionCharge,
    CostCharge,
    ManualCharge,
    MinimumCharge,
    ResidencyCharge,
    ResidentAdapter,
    TenantStatement,
    TokenCharge,
)
from gateway.costs.closing.settlement import Settlement
from gateway.costs.manual_lines.lines import Lines, MonthLine
from gateway.costs.prices.book import PriceBook
from gateway.costs.selling.cards import RateCards
from gateway.costs.selling.charges import (
    BATCH_SKU,
    MINIMUM_SKU,
    RESIDENCY_SKU,
    SKUS,
    MonthCharges,
    MonthCorrection,
    TenantMonth,
    price_id,
)
from gateway.costs.selling.posted import tenant_months
from gateway.units import Amount, Cents, NanoHours, cents_of, rounded, total

LATE_RECORDS = "usage that was recorded or changed after the month was closed"
COST_CHANGED = "costs that changed after the month was closed"


def with_charges(
    connection: Connection, book: PriceBook, month: str, cards: RateCards, settled: Settlement, step: int = 1
) -> Settlement:
    """The settlement, with `charges` in the statements of tenants that pay by a rate card. `book`: for rows
    without a frozen rate. `step`: see `statement_step`."""
    costs = {tenant: statement.cost for tenant, statement in settled.statements.items()}
    shares: dict[tuple[str, str], int] = {}
    for tenant, statement in settled.statements.items():
        for line in statement.lines:
            if line.kind == "allocated" and line.correction:
                key = tenant, line.corrects
                shares[key] = shares.get(key, 0) + line.cost
    charged = tenant_months(connection, book, month, cards, costs, shares)
    statements = {
        tenant: statement.model_copy(update={"charges": charges_of(charged[tenant], step)})
        if tenant in charged
        else statement
        for tenant, statement in settled.statements.items()
    }
    return Settlement(statements, settled.totals)


def with_manual_lines(settled: Settlement, lines: Lines) -> Settlement:
    """The settlement, with what people added to statements; also to those of tenants without usage."""
    if not lines:
        return settled
    empty = TenantStatement(
        nano_gpu_hours=NanoHours(0),
        allocated_nano_gpu_hours=NanoHours(0),
        cost=Amount(0),
        amount_cents=Cents(0),
        lines=(),
    )
    added = {
        tenant: settled.statements.get(tenant, empty).model_copy(update={"manual": tuple(map(_manual, own))})
        for tenant, own in lines.items()
    }
    return Settlement({**settled.statements, **added}, settled.totals)


def _manual(line: MonthLine) -> ManualCharge:
    """What it has nothing of, it does not say."""
    fields = {name: value for name, value in asdict(line).items() if value not in {"", 0}}
    return ManualCharge(**{**fields, "amount_cents": fields.pop("cents")})


def charges_of(month: TenantMonth, step: int = 1) -> Charges:
    """Each amount exactly and in cents. The sum is rounded once, half up; its parts by largest remainder, so
    that they sum to it: first tokens, residency, minimum and corrections, then the kinds of tokens."""
    current = month.current
    parts: dict[str, int] = {}
    if current is None:
        parts["cost"] = month.cost
    else:
        parts |= {"tokens": sum(kind.amount for kind in current.kinds), "minimum": current.top_up}
        if current.resident:
            parts["residency"] = current.residency
        if current.batch_discount:
            parts["batch"] = current.batch_discount
    parts |= {f"priced {name}": change.amount for name, change in month.corrections.items()}
    parts |= {f"cost {name}": cost for name, cost in month.corrected_cost.items()}
    price = cents_of(month.amount, step)
    cents = rounded(parts, price, step=step)
    lines: list[Charge] = []
    if current is None:
        lines.append(CostCharge(kind="cost", **_amounts(month.cost, cents["cost"])))
    else:
        lines += _lines(current, cents, step)
    lines += [
        _correction(name, change, cents[f"priced {name}"]) for name, change in month.corrections.items()
    ]
    lines += [
        CorrectionCharge(
            kind="correction", month=name, reason=COST_CHANGED, **_amounts(cost, cents[f"cost {name}"])
        )
        for name, cost in month.corrected_cost.items()
    ]
    card = None if current is None else current.card
    return Charges(
        card=None if card is None else card.name,
        card_from=None if card is None else card.valid_from,
        **_amounts(month.amount, price),
        lines=tuple(lines),
    )


class _Amounts(TypedDict):
    exact: Amount
    amount_cents: Cents


def _amounts(amount: int, cents: Cents) -> _Amounts:
    return {"exact": Amount(amount), "amount_cents": cents}


def _lines(charges: MonthCharges, cents: Mapping[str, Cents], step: int) -> Iterator[Charge]:
    """What there was nothing of has no line, so that the documents of earlier months stay as they were."""
    card = charges.card
    of_kinds = rounded({n: kind.amount for n, kind in enumerate(charges.kinds)}, cents["tokens"], step=step)
    for n, kind in enumerate(charges.kinds):
        yield TokenCharge(
            kind=kind.kind,
            sku=SKUS[kind.kind],
            price=price_id(card, kind.kind),
            tokens=kind.tokens,
            free_tokens=kind.free,
            per_million=kind.rate_micros,
            **_amounts(kind.amount, of_kinds[n]),
        )
    if charges.resident:
        yield ResidencyCharge(
            kind="residency",
            sku=RESIDENCY_SKU,
            price=price_id(card, "residency"),
            hours=total(charges.resident.values()),
            per_hour=card.residency_micros,
            adapters=tuple(
                ResidentAdapter(adapter=adapter, hours=hours)
                for adapter, hours in sorted(charges.resident.items())
            ),
            **_amounts(charges.residency, cents["residency"]),
        )
    if charges.batch_discount:
        yield BatchDiscount(
            kind="batch_discount",
            sku=BATCH_SKU,
            price=price_id(card, "batch"),
            input_tokens=charges.batch.input,
            cached_tokens=charges.batch.cached,
            output_tokens=charges.batch.output,
            batch_percent=card.batch_percent,
            **_amounts(charges.batch_discount, cents["batch"]),
        )
    if charges.top_up:
        yield MinimumCharge(
            kind="minimum",
            sku=MINIMUM_SKU,
            price=price_id(card, "minimum"),
            monthly_minimum=card.minimum_micros,
            **_amounts(charges.top_up, cents["minimum"]),
        )


def _correction(month: str, change: MonthCorrection, cents: Cents) -> CorrectionCharge:
    return CorrectionCharge(
        kind="correction",
        month=month,
        reason=LATE_RECORDS,
        card=change.after.card.name,
        input_tokens=change.tokens.input,
        cached_tokens=change.tokens.cached,
        output_tokens=change.tokens.output,
        **_amounts(change.amount, cents),
    )
