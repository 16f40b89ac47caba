"""Are the books kept? What `florin doctor` asks of the ledger."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from sqlalchemy import func, select

from gateway.costs.maintenance.maintenance_job import METRICS, TROUBLE
from gateway.costs.rollups.set_aside import SetAside, count_set_aside, read_set_aside
from gateway.metering.ledger.ledger import HOUR, Ledger
from gateway.metering.ledger.schema import dirty_hours, snapshots

LATE = 1_800_000_000
"""Microseconds without a pass after which somebody should look: as the alert FlorinBooksNotKept."""


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    kept: int | None
    """When the last whole pass began, Unix microseconds; None: there was none."""
    trouble: str
    """What stopped a later pass; empty: nothing did."""
    late: bool
    """Something waits to be rolled up, and nobody has done it for too long."""
    set_aside: int
    first: SetAside | None


def health(ledger: Ledger, now: int, *, interval: float) -> LedgerHealth:
    """`interval`: seconds between passes. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        query = select(snapshots.c.name, snapshots.c.at, snapshots.c.document)
        found = {
            row.name: row for row in connection.execute(query.where(snapshots.c.name.in_((METRICS, TROUBLE))))
        }
        oldest = connection.execute(
            select(func.min(dirty_hours.c.hour)).where(dirty_hours.c.hour <= now)
        ).scalar()
        first = read_set_aside(connection, limit=1)
        count = count_set_aside(connection)
    kept = found[METRICS].at if METRICS in found else None
    trouble = found.get(TROUBLE)
    patience = max(LATE, int(3e6 * interval))
    waiting = None if oldest is None else oldest + HOUR
    since = waiting if kept is None else kept
    return LedgerHealth(
        kept=kept,
        trouble=orjson.loads(trouble.document) if trouble is not None and trouble.at > (kept or 0) else "",
        late=since is not None and now - since > patience,
        set_aside=count,
        first=first[0] if first else None,
    )
