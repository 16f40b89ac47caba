"""What nobody has accepted of a month's bill, for whoever closes the month."""

from __future__ import annotations

from fractions import Fraction

from sqlalchemy import Connection, select

from gateway.costs.periods import Period, month_of
from gateway.costs.reconciliation.acceptances import read_acceptances
from gateway.costs.reconciliation.bill_section import bill_findings, bill_section
from gateway.metering.ledger.schema import bill_lines
from gateway.units import HOUR


def open_lines(connection: Connection, month: str, *, tolerance: Fraction, now: int) -> list[str]:
    """A sentence for what is identified and not accepted beyond the tolerance, or if there is no bill of the
    month. Nothing where bills are not imported at all."""
    if connection.execute(select(bill_lines.c.id).limit(1)).first() is None:
        return []
    period = month_of(month)
    within = Period(period.start, max(period.start, min(period.end, now - now % HOUR)))
    return bill_findings(
        bill_section(connection, month, within, read_acceptances(connection, month)),
        month,
        tolerance,
    )
