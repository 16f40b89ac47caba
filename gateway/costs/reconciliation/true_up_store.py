"""True-ups in the ledger: computed from the month's bill, recorded once, never edited. A later true-up of the
same month takes its place, and the earlier one is kept."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, insert, select

from gateway.costs.merkle import canonical
from gateway.costs.periods import Period, iso, month_of
from gateway.costs.reconciliation.acceptances import read_acceptances
from gateway.costs.reconciliation.bill_section import (
    BillCheck,
    bill_findings,
    bill_section,
    checked_bill,
    merged,
)
from gateway.costs.reconciliation.true_up import Books, cents_of, open_books, true_up
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, periods
from gateway.metering.ledger.schema import true_ups as table
from gateway.units import HOUR, decimal_of


class TrueUpError(Exception):
    """The month cannot be trued up; the message says why and what to do."""


def show_true_up(ledger: Ledger, month: str, *, tolerance: Fraction, now: int) -> dict[str, Any]:
    """What a true-up of the month would be now (`preview`, null if `blocked` says why it cannot be made), and
    the recorded ones, newest first. `current`: whether the newest has the amounts that it would have now.

    Raises PeriodError, LedgerUnavailableError."""
    with ledger.read() as connection:
        preview, blocked = _preview(connection, month, tolerance, now)
        recorded = read_true_ups(connection, month)
    current = bool(recorded) and preview is not None and _same(recorded[0], preview, but=_BOOKS)
    return {"month": month, "preview": preview, "blocked": blocked, "recorded": recorded, "current": current}


def record_true_up(
    ledger: Ledger,
    month: str,
    *,
    tolerance: Fraction,
    invoice: Fraction | None,
    now: int,
    by: str,
    actor: str = "",
) -> tuple[dict[str, Any], bool]:
    """Make the month's cost the invoice's. Returns the true-up, and False if the same one was recorded
    before. `invoice`: its total, if it is known, which the imported lines must sum to. `actor`: recorded in
    the audit log; empty to record nothing.

    Raises PeriodError, TrueUpError, LedgerUnavailableError."""
    with ledger.write() as connection:
        preview, blocked = _preview(connection, month, tolerance, now)
        if preview is None:
            raise TrueUpError(" ".join(blocked))
        billed, currency = _invoiced(preview)
        if invoice is not None and invoice != billed:
            raise TrueUpError(
                f"The imported lines of {month} sum to {decimal_of(billed)} {currency}, not to "
                f"{decimal_of(invoice)}: import what is missing (taxes, credits and fees are lines too), or "
                "correct the amount."
            )
        before = read_true_ups(connection, month)
        if before and _same(before[0], preview):
            return before[0], False
        document = canonical(preview).decode()
        connection.execute(insert(table).values(month=month, at=now, by=by, document=document))
        seal(connection, "true_up", month)
        details = {key: preview[key] for key in ("currency", "list_cost", "invoice_cost", "sources", "seal")}
        record(connection, actor, "bill.true_up", month, details, now)
        return read_true_ups(connection, month)[0], True


def _invoiced(preview: dict[str, Any]) -> tuple[Fraction, str]:
    """What is on the paper: in its own currency, if all of it is in one."""
    own = preview.get("billed", {})
    if len(own) == 1:
        [(currency, total)] = own.items()
        return Fraction(cents_of(Fraction(total)), 100), currency
    return Fraction(preview["invoice_amount_cents"], 100), preview["currency"]


def read_true_ups(connection: Connection, month: str) -> list[dict[str, Any]]:
    """The recorded true-ups of a month, newest first: the first one counts."""
    query = select(table.c.at, table.c.by, table.c.document).where(table.c.month == month)
    rows = connection.execute(query.order_by(table.c.id.desc())).all()
    return [
        {**json.loads(document), "recorded_at": iso(recorded_at), "by": by}
        for recorded_at, by, document in rows
    ]


_BOOKS = frozenset({"books", "seal"})
"""They change when the month is closed, and need not change any amount."""


def _same(recorded: dict[str, Any], preview: dict[str, Any], *, but: frozenset[str] = frozenset()) -> bool:
    return all(recorded.get(key) == value for key, value in preview.items() if key not in but)


def _preview(
    connection: Connection, month: str, tolerance: Fraction, now: int
) -> tuple[dict[str, Any] | None, list[str]]:
    """The true-up, or None and why there is none."""
    period = month_of(month)
    if now < period.end:
        return None, [f"{month} is not over yet; it ends {iso(period.end)}."]
    if _pending(connection, period):
        return None, [f"Usage of {month} is still arriving; try again shortly."]
    section = bill_section(connection, month, period, read_acceptances(connection, month))
    blocked = bill_findings(section, month, tolerance)
    checked = checked_bill(connection, period)
    if checked is None or blocked:
        return None, [*blocked, *([_HOW_TO_ACCEPT] if checked else [])]
    if foreign := sorted({name for account in checked.accounts for name in account.other_currencies}):
        names = ", ".join(foreign)
        obstacle = f"The bill has lines in {names}, but the price book uses {checked.currency}: "
        return None, [f"{obstacle}add the exchange rate (florin exchange-rate add), or import it converted."]
    return _document(connection, month, checked), []


_HOW_TO_ACCEPT = "Accept what florin cost reconcile shows (florin cost accept LINE), or correct the bill."


def _document(connection: Connection, month: str, checked: BillCheck) -> dict[str, Any]:
    books = _books(connection, month) or open_books(checked.own_cost)
    figures = true_up(books, checked.own_cost, checked.billed_cost, merged(checked.differences))
    about: dict[str, Any] = {"month": month, "currency": checked.currency, "sources": list(checked.sources)}
    if checked.exchange_rates:
        about |= {"exchange_rates": list(checked.exchange_rates), "billed": dict(checked.billed)}
    return {**about, **figures}


def _books(connection: Connection, month: str) -> Books | None:
    """The books of a closed month; None: it is open."""
    query = select(periods.c.root, periods.c.document).where(
        periods.c.month == month, periods.c.state == "closed"
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    totals = json.loads(row.document)["summary"]["totals"]
    return Books(closed=True, cost=Fraction(totals["cost"]), cents=totals["amount_cents"], seal=row.root)


def _pending(connection: Connection, period: Period) -> bool:
    """Whether hours of the month wait for their roll-up."""
    hour = dirty_hours.c.hour
    query = select(hour).where(hour >= period.start, hour < period.end - period.end % HOUR).limit(1)
    return connection.execute(query).first() is not None
