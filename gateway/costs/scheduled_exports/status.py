"""How scheduled exports fare, for metrics and `florin doctor` on every worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from sqlalchemy import func, select

from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import scheduled_exports, snapshots
from gateway.observability.computed_metrics import Series
from gateway.units import DAY

EXPORTS = "exports"
"""Name of the snapshot with what failed in the last attempt."""
_STALE = 2 * DAY
"""Then there is no schedule any more."""


@dataclass(frozen=True, slots=True)
class ExportStatus:
    failure: str
    """Why the last attempt failed; empty if it succeeded."""
    current_at: int | None
    """When a file was last known to be current; None: never."""


def read_status(ledger: Ledger, now: int) -> ExportStatus | None:
    """None: nothing was tried lately. Raises LedgerUnavailableError."""
    query = select(snapshots.c.at, snapshots.c.document).where(snapshots.c.name == EXPORTS)
    with ledger.read() as connection:
        row = connection.execute(query).first()
        current = connection.execute(select(func.max(scheduled_exports.c.checked_at))).scalar_one()
    if row is None or now - row.at > _STALE:
        return None
    return ExportStatus(orjson.loads(row.document), current)


def export_series(ledger: Ledger, now: int) -> Mapping[str, Series]:
    """Raises LedgerUnavailableError."""
    status = read_status(ledger, now)
    if status is None:
        return {}
    current = [] if status.current_at is None else [((), status.current_at / 1e6)]
    return {
        "florin_scheduled_export_failing": [((), float(bool(status.failure)))],
        "florin_scheduled_export_timestamp_seconds": current,
    }
