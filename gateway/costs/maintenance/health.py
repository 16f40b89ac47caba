"""Health of the ledger's maintenance, for `florin doctor`."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from sqlalchemy import func, select

from gateway.costs.maintenance.maintenance_job import METRICS, TROUBLE
from gateway.costs.rollups.set_aside import SetAside, count_set_aside, read_set_aside
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, snapshots
from gateway.units import HOUR

LATE = 1_800_000_000
"""Microseconds without a pass after which `florin doctor` reports a problem. The alert
`FlorinLedgerMaintenanceLate` uses the same limit."""


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    last_pass: int | None
    """When the last complete pass began, Unix microseconds; None if there was none."""
    trouble: str
    """Error of a later pass; empty if none failed."""
    late: bool
    """Hours have been waiting for a roll-up for too long."""
    set_aside: int
    first: SetAside | None


def health(ledger: Ledger, now: int, *, interval: float) -> LedgerHealth:
    """`interval`: seconds between passes. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        query = select(snapshots.c.name, snapshots.c.at, snapshots.c.document)
        series = {
            row.name: row for row in connection.execute(query.where(snapshots.c.name.in_((METRICS, TROUBLE))))
        }
        oldest = connection.execute(
            select(func.min(dirty_hours.c.hour)).where(dirty_hours.c.hour <= now)
        ).scalar()
        first = read_set_aside(connection, limit=1)
        count = count_set_aside(connection)
    last_pass = series[METRICS].at if METRICS in series else None
    trouble = series.get(TROUBLE)
    patience = max(LATE, int(3e6 * interval))
    waiting = None if oldest is None else oldest + HOUR
    since = waiting if last_pass is None else last_pass
    return LedgerHealth(
        last_pass=last_pass,
        trouble=orjson.loads(trouble.document)
        if trouble is not None and trouble.at > (last_pass or 0)
        else "",
        late=since is not None and now - since > patience,
        set_aside=count,
        first=first[0] if first else None,
    )
