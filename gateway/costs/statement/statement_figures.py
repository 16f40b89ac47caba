"""The figures of a statement. Amounts are in hundredths of the currency, rounded once.

A tenant with a rate card is charged by it; `charges` has its lines, and the table of adapters their price
before allowance and minimum. A tenant without one is charged what its usage cost.

The figures of a closed month are those that its hash covers, so the statements of all tenants sum to the
invoice; they are only divided further, among versions, without rounding again. For an open month they are
computed in the same way from current data, by the standing policy, and are preliminary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, select

from gateway.costs.closing.documents import Charges, Credits, ManualCharge, TenantStatement
from gateway.costs.closing.preview import MonthSettlement, settlement_now
from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.export.chargeback import split
from gateway.costs.export.files import MissingPriceError, missing_prices
from gateway.costs.periods import Period, month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.selling.card_store import read_cards
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.invoices import Invoice, in_force, read_invoices
from gateway.costs.statement.converted import Conversion, charges_document, converted, exchange_rate
from gateway.costs.statement.division import Division, Undivided, divide_statement
from gateway.costs.statement.items import BY, ONE, Item, items_of, priced_items
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import period_tenants, periods
from gateway.units import DAY, MICRO, Amount, Cents, step_of

_BY = ("adapter", "version", "base_model")


@dataclass(frozen=True, slots=True)
class UnitPrice:
    """Cost of a million tokens of each kind on a GPU type; None without tokens."""

    gpu_type: str
    input: Amount | None
    cached: Amount | None
    output: Amount | None


@dataclass(frozen=True, slots=True)
class PeriodHash:
    """What a closed month can be checked with."""

    closed_at: int
    records: int
    tenant_root: str
    """Empty: the tenant has no records."""
    root: str


@dataclass(frozen=True, slots=True)
class Statement:
    tenant: str
    month: str
    period: Period
    currency: str
    policy: str
    usage: tuple[Item, ...]
    allocated: tuple[Item, ...]
    corrections: tuple[Item, ...]
    unit_prices: tuple[UnitPrice, ...]
    days: Mapping[str, tuple[int, ...]]
    """Tokens by adapter, for each day of the month."""
    calibrated: bool
    retries: int
    """Attempts of requests that were answered by a later attempt or not at all; not billed."""
    cents: Cents
    period_hash: PeriodHash | None
    """None: the month is open and the statement preliminary."""
    charges: Charges | None = None
    """By rate card, with cents in the statement's currency and exact amounts in the price book's. None: the
    cost is charged."""
    manual: tuple[ManualCharge, ...] = ()
    """Fees, charges, credits and refunds."""
    credits: Credits | None = None
    """Prepaid; what is drawn is taken off."""
    invoice: Invoice | None = None
    converted: Conversion | None = None
    """From the price book's currency."""
    division: Division | None = None
    step: int = 1
    """Hundredths in the smallest unit of the currency."""

    @property
    def tax_cents(self) -> Cents:
        return self.invoice.tax_cents(self.cents) if self.invoice else Cents(0)

    @property
    def charges_document(self) -> dict[str, Any] | None:
        """The charges in the statement's currency."""
        if self.charges is None:
            return None
        return charges_document(self.charges, ONE if self.converted is None else self.converted.rate.factor)


def read_statement(
    connection: Connection,
    tenant: str,
    month: str,
    *,
    known: bool,
    currency: str | None = None,
    now: int = 0,
    for_tenant: bool = False,
    by: str | None = None,
    issuing: Invoice | None = None,
) -> Statement | None:
    """None if the tenant has nothing in that month and is not `known`. `currency`: other than the price
    book's, at the exchange rate of the month's end, or `now`. `for_tenant`: its key asks. `by`: also divide
    the amount by this dimension. `issuing`: the invoice that this is to be.

    Raises MissingPriceError if an open month is charged at cost and lacks a price, and ExchangeRateError."""
    book, period = PriceBook(read_prices(connection)), month_of(month)
    lines = list(read_lines(connection, book, period, BY, tenants=(tenant,)))
    closed = _closed(connection, tenant, month)
    settled = settlement_now(connection, month, book=book)
    if not lines and tenant not in settled.settlement.statements:
        return _empty(connection, tenant, month, by) if known else None
    statement = settled.settlement.statements[tenant]
    card = None if statement.charges is None else read_cards(connection).card(tenant, month)
    if missing := _missing(lines, settled, statement, card):
        raise MissingPriceError(f"No price of {missing} for all of {month}: add it with florin price add.")
    own, change = _currency(closed, card, book), None
    step = step_of(own)
    invoice = _invoice(connection, tenant, month, currency or own, own) if issuing is None else issuing
    if currency not in {None, own} and own:
        asking, known_at = tenant if for_tenant else None, closed.period_hash.closed_at if closed else None
        if invoice is not None and invoice.kind == "corrected_invoice":
            known_at = invoice.recorded_at
        rate = exchange_rate(
            connection, month, own, currency or "", now=now, tenant=asking, known_at=known_at
        )
        change = Conversion(rate, statement.due_cents)
        step = step_of(rate.target)
        statement = converted(statement, rate.factor, step)
    cents, charges = statement.due_cents, statement.charges
    factor = ONE if change is None else change.rate.factor
    items = (
        items_of(lines, statement, factor, step)
        if card is None
        else priced_items(lines, card, charges, factor, step)
    )
    used = [line for line in lines if line.bucket == "usage" and not line.correction]
    division = None
    if by is not None:
        undivided = Undivided(tenant, period, items["usage"], items["allocated"], cents, step)
        division = divide_statement(connection, book, by, undivided, card, factor)
    return Statement(
        tenant=tenant,
        month=month,
        period=period,
        currency=own if change is None else change.rate.target,
        policy=settled.terms.policy.own.get(tenant, settled.terms.policy.name),
        **items,
        unit_prices=unit_prices(used, factor) if card is None else (),
        days=_days(connection, book, period, tenant),
        calibrated=any(line.calibration for line in used),
        retries=sum(line.requests for line in lines if line.bucket == "retry_waste"),
        cents=cents,
        period_hash=closed.period_hash if closed else None,
        charges=charges,
        manual=statement.manual,
        credits=statement.credits,
        invoice=invoice,
        converted=change,
        division=division,
        step=step,
    )


def _invoice(connection: Connection, tenant: str, month: str, currency: str, own: str) -> Invoice | None:
    """The one that counts, if it is in this currency: a number belongs to no other amount."""
    invoice = in_force(read_invoices(connection, month, tenant))
    return invoice if invoice is not None and (invoice.currency or own) == currency else None


def _currency(closed: _Closed | None, card: RateCard | None, book: PriceBook) -> str:
    return (closed.currency if closed else None) or (card.currency if card else None) or book.currency or ""


def _empty(connection: Connection, tenant: str, month: str, by: str | None) -> Statement:
    query = select(periods).where(periods.c.month == month, periods.c.state == "closed")
    row = connection.execute(query).one_or_none()
    period_hash = None if row is None else PeriodHash(row.closed_at, 0, "", row.root)
    currency, policy = ("", "") if row is None else (row.currency or "", row.policy)
    return Statement(
        tenant, month, month_of(month), currency, policy, (), (), (), (), {},
        calibrated=False, retries=0, cents=Cents(0), period_hash=period_hash,
        division=None if by is None else Division(by, (), Cents(0), Cents(0)),
    )  # fmt: skip  # one empty table after the other says no more


@dataclass(frozen=True, slots=True)
class _Closed:
    currency: str | None
    period_hash: PeriodHash


def is_final(ledger: Ledger, tenant: str, month: str) -> bool:
    """Whether the tenant's statement can no longer change. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return _closed(connection, tenant, month) is not None


def _closed(connection: Connection, tenant: str, month: str) -> _Closed | None:
    query = (
        select(periods, period_tenants.c.root.label("tenant_root"),
               period_tenants.c.records.label("own_records"))
        .join(period_tenants, period_tenants.c.month == periods.c.month)
        .where(periods.c.month == month, periods.c.state == "closed", period_tenants.c.tenant == tenant)
    )  # fmt: skip  # as the query reads
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    period_hash = PeriodHash(row.closed_at, row.own_records, row.tenant_root, row.root)
    return _Closed(row.currency, period_hash)


def _missing(
    lines: Sequence[CostLine], now: MonthSettlement, statement: TenantStatement, card: RateCard | None
) -> str:
    """GPU types without a price of what is charged at cost: usage, the tenant's share of unused time, and
    corrections of months without a rate card."""
    charged = [line for line in lines if card is None or line.correction]
    shared = {line.series for line in statement.lines} if card is None else set()
    unpriced = (" ".join(filter(None, series)) for series in now.missing if series in shared)
    return missing_prices(charged) or ", ".join(unpriced)


def unit_prices(lines: Iterable[CostLine], factor: Fraction = ONE) -> tuple[UnitPrice, ...]:
    """By GPU type, of delivered answers: cost divided by tokens, with the cost split among the kinds of
    tokens as in the export."""
    sums: dict[str, tuple[list[int], list[int]]] = {}
    for line in lines:
        tokens = (line.prompt_tokens - line.cached_tokens, line.cached_tokens, line.completion_tokens)
        nanos, _ = split(line, tokens)
        costs, counts = sums.setdefault(line.gpu_type, ([0, 0, 0], [0, 0, 0]))
        for index in range(3):
            costs[index] += nanos[index] * (line.rate_micros or 0)
            counts[index] += tokens[index]
    return tuple(
        UnitPrice(gpu_type, *(_per_million(c * factor, n) for c, n in zip(*sums[gpu_type], strict=True)))
        for gpu_type in sorted(sums)
    )


def _per_million(cost: Fraction, count: int) -> Amount | None:
    return Amount(int(cost * MICRO // count)) if count else None


def _days(connection: Connection, book: PriceBook, period: Period, tenant: str) -> dict[str, tuple[int, ...]]:
    count = (period.end - period.start) // DAY
    by_name: dict[str, list[int]] = {}
    lines = read_lines(connection, book, period, ("day", *_BY), tenants=(tenant,), corrections=False)
    for line in lines:
        if line.bucket == "usage":
            day, adapter, _, base_model = line.keys
            series = by_name.setdefault(adapter or base_model, [0] * count)
            series[int(day[-2:]) - 1] += line.prompt_tokens + line.completion_tokens
    return {name: tuple(series) for name, series in by_name.items()}
