"""The settlement of a month as it is, or as closing it now would make it.

All that shows amounts of a month goes through `settlement_now`: reports, statements, exports and the preview
of a closing. So they agree to the cent, and nothing changes when the month is closed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from gateway.costs.allocation import AllocationPolicy
from gateway.costs.closing.charging import draws_of, with_charges, with_credits, with_manual_lines
from gateway.costs.closing.checks import (
    ClosingError,
    check_arrived,
    check_balance,
    check_order,
    check_over,
    check_prices,
    check_set_aside,
)
from gateway.costs.closing.documents import TenantStatement, Totals
from gateway.costs.closing.settlement import Settlement, settle
from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.credits.grants import Holdings, after, holdings_from, holdings_in
from gateway.costs.credits.store import read_grants
from gateway.costs.manual_lines.store import lines_of
from gateway.costs.periods import iso, month_of
from gateway.costs.policies.terms import MonthTerms, allocate_month, terms_of
from gateway.costs.prices.book import PriceBook, Series
from gateway.costs.prices.price_store import read_prices
from gateway.costs.selling.assignments import RateCards
from gateway.costs.selling.card_store import read_cards
from gateway.costs.selling.posted import charged_tenants
from gateway.metering.ledger.schema import period_tenants, periods
from gateway.metering.ledger.sealed_months import check_months
from gateway.units import FREE, step_of


@dataclass(frozen=True, slots=True)
class MonthSettlement:
    """What a month's tenants are billed, and by which terms."""

    month: str
    state: str
    terms: MonthTerms
    currency: str | None
    settlement: Settlement
    cards: RateCards
    """As they are or, of a closed month, were at its cutoff."""
    missing: tuple[Series, ...] = ()
    """Series without a price; their time costs nothing here."""


def settlement_now(
    connection: Connection,
    month: str,
    *,
    policy: AllocationPolicy | None = None,
    book: PriceBook | None = None,
) -> MonthSettlement:
    """`policy`: instead of the month's own. `book`: the price book, if it has been read already."""
    check_months(connection)
    row = connection.execute(select(periods).where(periods.c.month == month)).mappings().one_or_none()
    terms = terms_of(connection, month)
    other = policy is not None and policy != terms.policy
    if row is not None and not other and (stored := _stored(connection, month, row["document"])) is not None:
        return MonthSettlement(month, "closed", terms, row["currency"], stored, _cards(connection, row))
    if policy is not None and other:
        terms = MonthTerms(policy)
    book = book or PriceBook(read_prices(connection))
    settled = _before_credits(connection, month, book, row, terms)
    holdings = holdings_now(connection, month, book)
    return replace(settled, settlement=with_credits(settled.settlement, month, holdings))


def _before_credits(
    connection: Connection,
    month: str,
    book: PriceBook,
    row: RowMapping | None = None,
    terms: MonthTerms | None = None,
) -> MonthSettlement:
    """`row`: of a month that is closed, or being closed. `terms`: other than those of the open month."""
    terms = terms or terms_of(connection, month)
    posted_lines = list(read_lines(connection, book, month_of(month), ("tenant", "adapter")))
    lines = [
        line if line.rate_micros is not None else replace(line, rate_micros=FREE) for line in posted_lines
    ]
    cards = _cards(connection, row)
    charged = charged_tenants(connection, month, cards)
    currency = book.currency if row is None else row["currency"]
    step = step_of(currency)
    settled = settle(lines, allocate_month(connection, book, month, terms, lines), charged, step=step)
    return MonthSettlement(
        month=month,
        state="open" if row is None else row["state"],
        terms=terms,
        currency=currency,
        settlement=with_manual_lines(
            with_charges(connection, book, month, cards, settled, step), lines_of(connection, month)
        ),
        cards=cards,
        missing=_unpriced(posted_lines),
    )


def holdings_now(connection: Connection, month: str, book: PriceBook) -> Holdings:
    """What a month can draw of prepaid credits: as it was when the month was cut off or, before that, what
    earlier months will leave if they are closed as they are."""
    query = select(periods.c.month, periods.c.document)
    closed = {row.month: row.document for row in connection.execute(query)}
    if month in closed:
        return holdings_from(json.loads(closed[month] or "{}").get("terms", {}).get("credits", {}))
    grants = read_grants(connection)
    earlier = min((grant.begins for grant in grants if grant.drawn < grant.cents), default=month)
    if closed:
        earlier = max(earlier, iso(month_of(max(closed)).end)[:7])
    while earlier < month:
        if holdings := holdings_in(earlier, grants):
            settled = _before_credits(connection, earlier, book).settlement
            grants = after(grants, draws_of(with_credits(settled, earlier, holdings)))
        earlier = iso(month_of(earlier).end)[:7]
    return holdings_in(month, grants)


def _cards(connection: Connection, row: RowMapping | None) -> RateCards:
    """As they are now, or as they were when a month that is being closed was cut off."""
    terms = {} if row is None else json.loads(row["document"] or "{}").get("terms", {})
    if row is None:
        return read_cards(connection)
    return RateCards.of_rows(terms.get("rate_cards", {}))


def _stored(connection: Connection, month: str, document: str | None) -> Settlement | None:
    """The settlement of a closed month; None while it is being closed."""
    summary = json.loads(document or "{}").get("summary")
    if summary is None:
        return None
    query = select(period_tenants.c.tenant, period_tenants.c.document).where(period_tenants.c.month == month)
    rows = connection.execute(query.order_by(period_tenants.c.tenant))
    statements = {row.tenant: TenantStatement.model_validate_json(row.document) for row in rows}
    return Settlement(statements, Totals.model_validate(summary["totals"]))


def _unpriced(lines: Iterable[CostLine]) -> tuple[Series, ...]:
    missing = (line for line in lines if line.rate_micros is None and line.bucket != "rejected")
    return tuple(sorted({line.series for line in missing}))


def preview(
    connection: Connection, month: str, *, now: int, policy: AllocationPolicy | None = None
) -> dict[str, Any]:
    """What closing the month now would bill, as a document; for a closed month, what it billed.
    `policy`: instead of the standing policy. `obstacles` are the reasons why it cannot be closed now."""
    settled = settlement_now(connection, month, policy=policy)
    return {
        "month": month,
        "state": settled.state,
        **settled.terms.policy.document(),
        "standing": policy is None,
        "currency": settled.currency,
        "missing_prices": [" ".join(filter(None, series)) for series in settled.missing],
        "obstacles": [] if settled.state == "closed" else obstacles(connection, month, now, settled.missing),
        "totals": settled.settlement.totals.document(),
        "statements": [
            {"tenant": tenant, **statement.document()}
            for tenant, statement in sorted(settled.settlement.statements.items())
        ],
    }


def obstacles(connection: Connection, month: str, now: int, missing: Sequence[Series] = ()) -> list[str]:
    """Why the month cannot be closed now, and what to do about each. `missing`: series without a price."""
    known = connection.execute(select(periods.c.month, periods.c.state).order_by(periods.c.month)).all()
    checks: list[Callable[[], None]] = [
        lambda: check_over(month_of(month), month, now, force=False),
        lambda: check_order(
            connection, month, [(row.month, row.state) for row in known if row.month != month]
        ),
        lambda: check_arrived(connection, month),
        lambda: check_set_aside(connection, month),
        lambda: check_balance(connection, month),
        lambda: check_prices(missing),
    ]
    reasons = []
    for check in checks:
        try:
            check()
        except ClosingError as error:
            reasons.append(str(error))
    return reasons
