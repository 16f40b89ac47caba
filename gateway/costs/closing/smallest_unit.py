"""To what the amounts of a month's statements are rounded."""

from __future__ import annotations

from sqlalchemy import Connection

from gateway.costs.periods import month_of
from gateway.metering.ledger.engine_hours import earlier_rules_before
from gateway.units import step_of


def statement_step(connection: Connection, month: str, currency: str | None) -> int:
    """Hundredths in the smallest unit of the currency; 1 for months that a release closed which rounded every
    currency to hundredths."""
    earlier = month_of(month).start < earlier_rules_before(connection)
    return 1 if earlier else step_of(currency)
