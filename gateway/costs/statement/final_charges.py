"""What a tenant that is removed is still charged."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from gateway.costs.manual_lines.lines import month_lines
from gateway.costs.manual_lines.store import read_manual_lines
from gateway.costs.periods import iso
from gateway.costs.selling.card_store import read_cards
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import periods, rollups
from gateway.units import Micros, micros_text


def final_charges(ledger: Ledger, tenant: str, now: int) -> dict[str, Any]:
    """Removed at `now`. Its card and its fees end with the month. Raises LedgerUnavailableError."""
    month = iso(now)[:7]
    with ledger.read() as connection:
        latest = connection.execute(select(func.max(periods.c.month))).scalar() or ""
        posted = select(rollups.c.posted).where(rollups.c.tenant == tenant, rollups.c.posted > latest)
        used = connection.execute(posted.distinct()).scalars().all()
        cards = read_cards(connection)
        lines = read_manual_lines(connection, tenant)
    own = cards.assigned(tenant, month)
    card = None if own is None or own.tenant != tenant else cards.card(tenant, month)
    minimum = Micros(0) if card is None else card.minimum_micros
    fees = any(line.kind == "fee" for line in month_lines(lines, month).get(tenant, ()))
    single = {line.month for line in lines if line.counts and line.month > latest}
    return {
        "months": sorted({*used, *single, *([month] if minimum or fees else [])}),
        "pending_lines": sum(line.pending for line in lines),
        "last_month": month,
        "rate_card": None if card is None else card.name,
        "monthly_minimum": micros_text(minimum),
        "currency": None if card is None else card.currency,
    }
