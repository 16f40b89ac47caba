"""What a closed month charges by rate cards, beside what it cost: the figures that its hash covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypedDict

from sqlalchemy import Connection

from gateway.costs.closing.documents import (
    BatchDiscount,
    Charge,
    Charges,
    CorrectionCharge,
    CostCharge,
    CreditDraw,
    Credits,
    DedicatedCharge,
    DedicatedGpus,
    DiscountCharge,
    ManualCharge,
    MinimumCharge,
    RequestCharge,
    ResidencyCharge,
    ResidentAdapter,
    TenantStatement,
    TierPrice,
    TokenCharge,
    UsedLine,
)
from gateway.costs.closing.settlement import Settlement
from gateway.costs.credits.grants import Holdings, draw
from gateway.costs.manual_lines.lines import Lines, MonthLine
from gateway.costs.prices.book import PriceBook
from gateway.costs.selling.assignments import RateCards
from gateway.costs.selling.card_lines import SELECTORS
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.charges import (
    BATCH_SKU,
    DEDICATED_SKU,
    DISCOUNT_SKU,
    MINIMUM_SKU,
    RESIDENCY_SKU,
    SKUS,
    KindCharge,
    LineCharges,
    MonthCharges,
    MonthCorrection,
    TenantMonth,
    line_sku,
    price_id,
)
from gateway.costs.selling.posted import tenant_months
from gateway.units import Amount, Cents, NanoHours, cents_of, rounded, total

LATE_RECORDS = "usage that was recorded or changed after the month was closed"
COST_CHANGED = "costs that changed after the month was closed"
_EMPTY = TenantStatement(
    nano_gpu_hours=NanoHours(0),
    allocated_nano_gpu_hours=NanoHours(0),
    cost=Amount(0),
    amount_cents=Cents(0),
    lines=(),
)
"""A tenant without usage has this statement."""


def with_charges(
    connection: Connection, book: PriceBook, month: str, cards: RateCards, settled: Settlement, step: int = 1
) -> Settlement:
    """The settlement, with `charges` in the statements of tenants that pay by a rate card. `book`: for rows
    without a frozen rate. `step`: see `step_of`."""
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
    added = {
        tenant: settled.statements.get(tenant, _EMPTY).model_copy(update={"manual": tuple(map(_manual, own))})
        for tenant, own in lines.items()
    }
    return Settlement({**settled.statements, **added}, settled.totals)


def with_credits(settled: Settlement, month: str, holdings: Holdings) -> Settlement:
    """The settlement, with what statements draw of prepaid credits; also for tenants with nothing else."""
    if not holdings:
        return settled
    drawn = {}
    for tenant, own in holdings.items():
        statement = settled.statements.get(tenant, _EMPTY)
        of_month = draw(own, month, statement.price_cents)
        document = Credits(
            opening_cents=of_month.opening,
            granted_cents=of_month.granted,
            drawn_cents=of_month.drawn,
            expired_cents=of_month.expired,
            closing_cents=of_month.closing,
            draws=tuple(CreditDraw(grant=d.grant, reason=d.reason, cents=d.cents) for d in of_month.draws),
        )
        drawn[tenant] = statement.model_copy(update={"credits": document})
    return Settlement({**settled.statements, **drawn}, settled.totals)


def draws_of(settled: Settlement) -> dict[int, Cents]:
    """What it draws of each grant."""
    by_tenant = (statement.credits for statement in settled.statements.values())
    return {part.grant: part.cents for own in by_tenant if own for part in own.draws}


def _manual(line: MonthLine) -> ManualCharge:
    """What it has nothing of, it does not say."""
    fields = {name: value for name, value in asdict(line).items() if value not in {"", 0}}
    return ManualCharge(**{**fields, "amount_cents": fields.pop("cents")})


def charges_of(month: TenantMonth, step: int = 1) -> Charges:
    """Each amount exactly and in cents. The sum is rounded once, half up; its parts by largest remainder, so
    that they sum to it: first what is charged for what, then the kinds of usage."""
    current = month.current
    parts: dict[str, int] = {}
    if current is None:
        parts["cost"] = month.cost
    else:
        parts |= {"tokens": current.used, "minimum": current.top_up}
        if current.resident:
            parts["residency"] = current.residency
        if current.gpu_time:
            parts["dedicated"] = current.gpu_time
        if current.batch_discount:
            parts["batch"] = current.batch_discount
        if current.discount:
            parts["discount"] = current.discount
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
        **({"card_lines": named} if (named := _card_lines(current)) else {}),
    )


def _card_lines(charges: MonthCharges | None) -> tuple[UsedLine, ...]:
    """What tells apart which usage has which price; not those of others' adapters."""
    lines = () if charges is None else (used.line for used in charges.lines if used.line.name)
    return tuple(
        UsedLine(line=line.name, **{name: value for name in SELECTORS if (value := getattr(line, name))})
        for line in lines
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
    pairs = [(line, kind) for line in charges.lines for kind in line.kinds]
    for n, (line, kind) in enumerate(pairs):
        if kind.quantity or not line.line.name:
            yield _of_kind(card, line, kind, of_kinds[n])
    resident = [line for line in charges.lines if line.resident]
    residencies = {n: line.residency for n, line in enumerate(resident)}
    of_residents = rounded(residencies, cents.get("residency", 0), step=step)
    for n, line in enumerate(resident):
        name = line.line.name
        yield ResidencyCharge(
            kind="residency",
            sku=line_sku(RESIDENCY_SKU, name),
            price=price_id(card, "residency", name),
            **_of_line(name),
            hours=total(line.resident.values()),
            per_hour=line.per_hour,
            adapters=tuple(
                ResidentAdapter(adapter=adapter, hours=hours)
                for adapter, hours in sorted(line.resident.items())
            ),
            **_amounts(line.residency, of_residents[n]),
        )
    yield from _of_dedicated(charges, cents, step)
    discounts = {n: line.batch_discount(card.batch_percent) for n, line in enumerate(charges.lines)}
    given = {n: discount for n, discount in discounts.items() if discount}
    for n, in_cents in rounded(given, cents.get("batch", 0), step=step).items():
        line = charges.lines[n]
        yield BatchDiscount(
            kind="batch_discount",
            sku=BATCH_SKU,
            price=price_id(card, "batch"),
            **_of_line(line.line.name),
            **{f"{kind.kind}_tokens": line.batch_quantity(kind.kind) for kind in line.of_tokens},
            batch_percent=card.batch_percent,
            **_amounts(given[n], in_cents),
        )
    if charges.discount:
        yield DiscountCharge(
            kind="discount",
            sku=DISCOUNT_SKU,
            price=price_id(card, "discount"),
            percent=charges.discount_percent,
            until=card.discount_until or None,
            **_amounts(charges.discount, cents["discount"]),
        )
    if charges.top_up:
        yield MinimumCharge(
            kind="minimum",
            sku=MINIMUM_SKU,
            price=price_id(card, "minimum"),
            monthly_minimum=card.minimum_micros,
            **_amounts(charges.top_up, cents["minimum"]),
        )


def _of_dedicated(charges: MonthCharges, cents: Mapping[str, Cents], step: int) -> Iterator[Charge]:
    lines = [line for line in charges.lines if line.dedicated]
    of_lines = rounded(
        {n: line.gpu_time for n, line in enumerate(lines)}, cents.get("dedicated", 0), step=step
    )
    for n, line in enumerate(lines):
        name = line.line.name
        yield DedicatedCharge(
            kind="dedicated",
            sku=line_sku(DEDICATED_SKU, name),
            price=price_id(charges.card, "dedicated", name),
            **_of_line(name),
            hours=total(line.dedicated.values()),
            per_gpu_hour=line.per_gpu_hour,
            gpus=tuple(
                DedicatedGpus(gpu_type=gpu_type, hours=hours)
                for gpu_type, hours in sorted(line.dedicated.items())
            ),
            **_amounts(line.gpu_time, of_lines[n]),
        )


def _of_kind(card: RateCard, line: LineCharges, kind: KindCharge, cents: Cents) -> Charge:
    price, name = kind.price, line.line.name
    about: dict[str, Any] = {
        "sku": line_sku(SKUS[price.kind], name),
        "price": price_id(card, price.kind, name),
        **_of_line(name),
        **_amounts(kind.amount, cents),
    }
    if price.tiers:
        about["tiers"] = tuple(TierPrice(above=tier.above, unit_price=tier.micros) for tier in price.tiers)
        about["tier_mode"] = "volume" if price.volume else "graduated"
    if price.kind == "requests":
        return RequestCharge(
            kind=price.kind,
            requests=kind.quantity,
            free_requests=kind.free,
            per_request=price.micros,
            **about,
        )
    return TokenCharge(
        kind=price.kind, tokens=kind.quantity, free_tokens=kind.free, per_million=price.micros, **about
    )


def _of_line(name: str) -> dict[str, Any]:
    """Nothing for the default line, so that the documents of earlier months stay as they were."""
    return {"line": name} if name else {}


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
