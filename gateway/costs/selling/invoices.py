"""What accounting adds to a statement: the invoice's number, the tax and the due date.

Florin writes no invoices: these are fields of the statement, so that it and the invoice name each other."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from datetime import date
from typing import Any

from sqlalchemy import Connection, insert, select

from gateway.costs.periods import iso
from gateway.costs.selling.cards import RateCardConflictError, RateCardError
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import invoices, period_tenants, periods
from gateway.units import MICRO, Cents, half_up, short_text

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

    @property
    def tax_percent(self) -> str:
        """Without superfluous zeros: `19`, `7.7`."""
        return short_text(self.tax_micros, 6)

    def tax_cents(self, cents: int, step: int = 1) -> Cents:
        """The tax on a statement's amount, rounded half away from zero, to whole steps."""
        sign = -1 if cents < 0 else 1
        return Cents(sign * half_up(abs(cents) * self.tax_micros, _WHOLE * step) * step)

    def document(self) -> dict[str, Any]:
        return {
            "month": self.month,
            "tenant": self.tenant,
            "number": self.number,
            "tax_name": self.tax_name or None,
            "tax_percent": self.tax_percent,
            "due": self.due or None,
            "recorded_at": iso(self.recorded_at),
        }


_COLUMNS = tuple(f.name for f in fields(Invoice))


def due_date(value: str) -> str:
    """Raises RateCardError unless it is a date."""
    try:
        if not _DATE.fullmatch(value):
            raise ValueError(value)
        date.fromisoformat(value)
    except ValueError as error:
        raise RateCardError("due", f"{value[:40]!r} is not a date like 2026-11-30.") from error
    return value


def read_invoice(connection: Connection, tenant: str, month: str) -> Invoice | None:
    """The one that counts."""
    query = select(*(invoices.c[name] for name in _COLUMNS)).where(
        invoices.c.month == month, invoices.c.tenant == tenant
    )
    row = connection.execute(query.order_by(invoices.c.id.desc()).limit(1)).one_or_none()
    return None if row is None else Invoice(*row)


def list_invoices(ledger: Ledger, month: str | None, tenant: str | None) -> list[Invoice]:
    """In the order in which they were recorded; of several for a tenant and month, the last counts. Raises
    LedgerUnavailableError."""
    query = select(*(invoices.c[name] for name in _COLUMNS)).order_by(invoices.c.id)
    if month is not None:
        query = query.where(invoices.c.month == month)
    if tenant is not None:
        query = query.where(invoices.c.tenant == tenant)
    with ledger.read() as connection:
        return [Invoice(*row) for row in connection.execute(query)]


def add_invoice(ledger: Ledger, new: Invoice, *, actor: str = "") -> tuple[Invoice, bool]:
    """Returns the invoice, and whether it is new. The month must be closed and the tenant have a statement in
    it, and no other statement may have the number.

    Raises RateCardConflictError, LedgerUnavailableError."""
    with ledger.write() as connection:
        standing = read_invoice(connection, new.tenant, new.month)
        if standing is not None and _terms(standing) == _terms(new):
            return standing, False
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
        same = select(invoices.c.month, invoices.c.tenant).where(invoices.c.number == new.number)
        for month, tenant in connection.execute(same):
            if (month, tenant) != (new.month, new.tenant):
                raise RateCardConflictError(
                    f"Invoice number {new.number} was already given to {tenant} for {month}."
                )
        connection.execute(insert(invoices), [asdict(new)])
        seal(connection, "invoice", new.month, new.tenant)
        details = {**new.document(), "replaces": None if standing is None else standing.number}
        record(connection, actor, "invoice.add", f"{new.month}/{new.tenant}", details, new.recorded_at)
        return new, True


def _terms(invoice: Invoice) -> tuple[str, str, int, str]:
    return invoice.number, invoice.tax_name, invoice.tax_micros, invoice.due
