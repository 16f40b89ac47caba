"""What accounting makes of a final statement: an invoice, with its number, tax and due date; later corrected
invoices and credit notes, each with a number of its own and a reason.

What was issued does not change. `gateway.costs.statement.issuing` stores each document as it was issued.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date
from typing import Any, Literal

from sqlalchemy import Connection, select

from gateway.costs.periods import iso
from gateway.costs.selling.cards import RateCardConflictError, RateCardError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import invoices, period_tenants, periods
from gateway.metering.ledger.sealed_months import check_months
from gateway.units import MICRO, Cents, half_up, short_text, step_of

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_WHOLE = 100 * MICRO
"""All of an amount, in millionths of a percent."""


@dataclass(frozen=True, slots=True)
class Invoice:
    month: str
    tenant: str
    number: str
    tax_name: str
    """`VAT`; empty: no tax."""
    tax_micros: int
    """Millionths of a percent."""
    due: str
    """A date; empty: not stated."""
    recorded_at: int
    kind: Literal["invoice", "corrected_invoice", "credit_note"] = "invoice"
    corrects: str = ""
    """The number of the invoice that it replaces, or takes something off."""
    reason: str = ""
    currency: str = ""
    """Empty: the price book's."""
    amount_cents: Cents | None = None
    """Before tax. None: an earlier version of Florin recorded it, and stored no document."""

    @property
    def tax_percent(self) -> str:
        """Without superfluous zeros: `19`, `7.7`."""
        return short_text(self.tax_micros, 6)

    def tax_cents(self, cents: int) -> Cents:
        """The tax on an amount in its currency, rounded half away from zero to the smallest unit."""
        sign, step = -1 if cents < 0 else 1, step_of(self.currency)
        return Cents(sign * half_up(abs(cents) * self.tax_micros, _WHOLE * step) * step)

    def document(self) -> dict[str, Any]:
        cents = self.amount_cents
        tax = None if cents is None else self.tax_cents(cents)
        return {
            "month": self.month,
            "tenant": self.tenant,
            "number": self.number,
            "kind": self.kind,
            "corrects": self.corrects or None,
            "reason": self.reason or None,
            "currency": self.currency or None,
            "amount_cents": cents,
            "tax_cents": tax,
            "total_cents": None if cents is None or tax is None else cents + tax,
            "tax_name": self.tax_name or None,
            "tax_percent": self.tax_percent,
            "due": self.due or None,
            "recorded_at": iso(self.recorded_at),
        }


COLUMNS = tuple(f.name for f in fields(Invoice))


def due_date(value: str) -> str:
    """Raises RateCardError unless it is a date."""
    try:
        if not _DATE.fullmatch(value):
            raise ValueError(value)
        date.fromisoformat(value)
    except ValueError as error:
        raise RateCardError("due", f"{value[:40]!r} is not a date like 2026-11-30.") from error
    return value


def read_invoices(connection: Connection, month: str | None, tenant: str | None) -> list[Invoice]:
    """In the order in which they were recorded."""
    query = select(*(invoices.c[name] for name in COLUMNS)).order_by(invoices.c.id)
    if month is not None:
        query = query.where(invoices.c.month == month)
    if tenant is not None:
        query = query.where(invoices.c.tenant == tenant)
    return [Invoice(*row) for row in connection.execute(query)]


def list_invoices(ledger: Ledger, month: str | None, tenant: str | None) -> list[Invoice]:
    """As `read_invoices`. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return read_invoices(connection, month, tenant)


def in_force(issued: Sequence[Invoice]) -> Invoice | None:
    """The invoice that counts, of those of a tenant and month."""
    return next((invoice for invoice in reversed(issued) if invoice.kind != "credit_note"), None)


def check_new(connection: Connection, new: Invoice) -> Invoice | None:
    """Whether an invoice can be issued; the same one if it was issued already. The month must be closed, and
    the tenant have a statement in it. Only the first needs to correct nothing.

    Raises RateCardConflictError."""
    _check_final(connection, new)
    same_number = read_numbered(connection, new.number)
    if same_number is not None:
        if _terms(same_number) == _terms(new) and new.currency in {"", same_number.currency}:
            return same_number
        raise RateCardConflictError(
            f"Number {new.number} was already given to {same_number.tenant} for {same_number.month}, "
            "and what was issued does not change."
        )
    issued = read_invoices(connection, new.month, new.tenant)
    standing = in_force(issued)
    if standing is None and new.corrects:
        raise RateCardConflictError(f"{new.tenant} has no invoice for {new.month} yet.")
    if standing is not None and new.corrects != standing.number:
        raise RateCardConflictError(
            f"The statement of {new.tenant} for {new.month} was issued as invoice {standing.number}, which "
            "does not change. Issue a corrected invoice or a credit note, with a number of its own: "
            f"--corrects {standing.number} --reason …"
        )
    if new.kind == "credit_note" and standing is not None and standing.amount_cents is not None:
        credits_ = [i for i in issued if i.kind == "credit_note" and i.corrects == standing.number]
        left = standing.amount_cents + sum(credit.amount_cents or 0 for credit in credits_)
        if left + (new.amount_cents or 0) < 0:
            raise RateCardConflictError(
                f"Of invoice {standing.number}, {left / 100:.2f} {standing.currency} without tax is left: a "
                "credit note cannot take off more."
            )
    return None


def _check_final(connection: Connection, new: Invoice) -> None:
    check_months(connection)
    closed = (
        select(period_tenants.c.tenant)
        .join(periods, periods.c.month == period_tenants.c.month)
        .where(periods.c.month == new.month, periods.c.state == "closed")
        .where(period_tenants.c.tenant == new.tenant)
    )
    if connection.execute(closed).first() is None:
        raise RateCardConflictError(
            f"{new.tenant} has no final statement for {new.month}: close the month first "
            f"(florin cost close {new.month})."
        )


def read_numbered(connection: Connection, number: str) -> Invoice | None:
    """The last with that number."""
    query = select(*(invoices.c[name] for name in COLUMNS)).where(invoices.c.number == number)
    row = connection.execute(query.order_by(invoices.c.id.desc()).limit(1)).one_or_none()
    return None if row is None else Invoice(*row)


def _terms(invoice: Invoice) -> tuple[Any, ...]:
    credit = invoice.amount_cents if invoice.kind == "credit_note" else None
    return (
        invoice.month, invoice.tenant, invoice.kind, invoice.corrects, invoice.reason, invoice.tax_name,
        invoice.tax_micros, invoice.due, credit,
    )  # fmt: skip  # one name a line says no more
