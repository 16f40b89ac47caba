"""Prunes old raw records. Everything computed from them (roll-ups, closed periods, seals) is kept forever.

Only records of closed months are removed, and only if none of their hours waits to be rolled up.
`pruned_before` is set first: from then on, no record of that time is accepted and none of its hours is rolled
up again, so a partly pruned hour is never summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, Select, delete, func, select

from gateway.metering.ledger.chain import PRUNED, seal
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.engine_hours import pruned_before
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, engine_probes, ledger_state, periods, usage_records
from gateway.metering.ledger.sealed_months import check_months
from gateway.units import DAY

_LAST = 4_102_444_800_000_000
"""The year 2100."""
_ROWS = 5_000
"""Records per transaction: a fraction of a second, during which SQLite blocks other writers."""


@dataclass(frozen=True, slots=True)
class Pruned:
    records: int
    """Removed by this call."""
    more: bool
    """Whether more are left for the next call."""


def prune(ledger: Ledger, now: int, days: int, *, most: int = 100_000) -> Pruned:
    """Remove up to `most` records of closed months that ended more than `days` days before `now` (Unix
    microseconds). 0 days: keep everything. A month that is not closed keeps its records and those of later
    months. SQLite's file does not shrink; freed space is reused.

    Raises LedgerUnavailableError."""
    if days <= 0:
        return Pruned(0, more=False)
    limit = now - days * DAY
    with ledger.read() as connection:  # most calls find nothing and need not block writers
        before = pruned_before(connection)
        cutoff = _cutoff(connection, before)
        if _end_of_closed(connection, before, limit) == before and not _some(connection, cutoff):
            return Pruned(0, more=False)
    with ledger.write() as connection:
        next_batch(connection)  # no one inserts between this check and the mark
        cutoff = _advance(connection, limit)
    removed = 0
    while cutoff is not None and removed < most:
        with ledger.write() as connection:
            count = _remove(connection, cutoff, min(_ROWS, most - removed))
        removed += count
        if not count:
            return Pruned(removed, more=False)
    return Pruned(removed, more=cutoff is not None)


def _advance(connection: Connection, limit: int) -> int | None:
    """Advance `pruned_before` as far as allowed. Returns the last batch whose records may be removed; None:
    none may."""
    before = pruned_before(connection)
    end = _end_of_closed(connection, before, limit)
    unrolled = connection.execute(select(func.min(dirty_hours.c.hour))).scalar()
    if end > before and (unrolled is None or unrolled >= end):
        put = insert(connection, ledger_state).values(name=PRUNED, value=end)
        connection.execute(put.on_conflict_do_update(index_elements=["name"], set_={"value": end}))
        seal(connection, "retention", PRUNED)
        before = end
    return _cutoff(connection, before)


def _cutoff(connection: Connection, before: int) -> int | None:
    """The last batch whose records may be removed. A late record belongs to the period that was open when it
    arrived, and is kept as long as that period's records."""
    query = select(func.max(periods.c.cutoff_batch)).where(
        periods.c.state == "closed", periods.c.month < _name(before)
    )
    return connection.execute(query).scalar() if before else None


def _end_of_closed(connection: Connection, before: int, limit: int) -> int:
    """End of the consecutive closed months, from that of the oldest record, that end before `limit`."""
    check_months(connection)
    ended = usage_records.c.ended
    query = select(func.min(ended)).where(ended >= before, ended < _LAST)  # no month after it
    oldest = connection.execute(query).scalar()
    if oldest is None:
        return before
    closed = set(connection.execute(select(periods.c.month).where(periods.c.state == "closed")).scalars())
    start, end = _month(oldest)
    while _name(start) in closed and end <= limit:
        before = end
        start, end = _month(end)
    return before


def _remove(connection: Connection, cutoff: int, rows: int) -> int:
    connection.execute(delete(engine_probes).where(engine_probes.c.at < pruned_before(connection)))
    chosen = _removable(connection, cutoff).limit(rows)
    return connection.execute(delete(usage_records).where(usage_records.c.id.in_(chosen))).rowcount


def _some(connection: Connection, cutoff: int | None) -> bool:
    if cutoff is None:
        return False
    return connection.execute(_removable(connection, cutoff).limit(1)).first() is not None


def _removable(connection: Connection, cutoff: int) -> Select[tuple[str]]:
    table = usage_records.c
    old = table.ended < pruned_before(connection), table.batch <= cutoff
    return select(table.id).where(*old).order_by(table.ended, table.id)


def _month(time: int) -> tuple[int, int]:
    """Start and end (exclusive) of the month, UTC."""
    moment = datetime.fromtimestamp(time // 1_000_000, UTC)
    first = datetime(moment.year, moment.month, 1, tzinfo=UTC)
    following = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC)
    return int(first.timestamp()) * 1_000_000, int(following.timestamp()) * 1_000_000


def _name(time: int) -> str:
    """`2026-11`."""
    return datetime.fromtimestamp(time // 1_000_000, UTC).strftime("%Y-%m")
