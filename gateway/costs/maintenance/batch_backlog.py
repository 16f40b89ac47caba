"""What batches have before them, for the metrics."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select

from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import batches
from gateway.observability.computed_metrics import Series


def batch_backlog(ledger: Ledger, now: int) -> Mapping[str, Series]:
    """Raises LedgerUnavailableError."""
    table = batches.c
    waiting = func.sum(table.total - table.completed - table.failed)
    open_ = select(func.coalesce(waiting, 0), func.min(table.created_at)).where(table.ended_at.is_(None))
    with ledger.read() as connection:
        counts = connection.execute(select(table.status, func.count()).group_by(table.status)).all()
        lines, oldest = connection.execute(open_).one()
    return {
        "florin_batches": [((status,), float(count)) for status, count in counts],
        "florin_batch_lines_waiting": [((), float(lines))],
        "florin_batch_oldest_seconds": [((), 0.0 if oldest is None else max(0.0, (now - oldest) / 1e6))],
    }
