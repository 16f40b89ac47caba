"""Engine-hours, the unit in which usage is rolled up, and the marks of those that must be rolled up again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from random import getrandbits
from typing import Any

from sqlalchemy import Connection, select

from gateway.metering.ledger.database import insert
from gateway.metering.ledger.schema import dirty_hours, ledger_state
from gateway.units import HOUR

EngineHour = tuple[int, str, str, int]
"""(hour, engine, gpu_type, gpu_count)"""


def touched(rows: Iterable[Mapping[str, Any]]) -> Iterator[EngineHour]:
    """The engine-hours of [dispatched, ended]; only that of the end if the clock was set back."""
    for row in rows:
        last = row["ended"] // HOUR * HOUR
        for hour in range(min(row["dispatched"] // HOUR * HOUR, last), last + 1, HOUR):
            yield hour, row["engine"], row["gpu_type"], row["gpu_count"]


def mark_dirty(connection: Connection, engine_hours: Iterable[EngineHour]) -> None:
    """In a write transaction: mark engine-hours to be rolled up again, except those whose records are pruned.
    In a fixed order, so that two writers cannot deadlock.

    A new mark starts at a random version, so that a roll-up that read an earlier, since deleted mark of the
    same engine-hour does not mistake this one for it."""
    since = pruned_before(connection)
    rows = [
        {"hour": hour, "engine": engine, "gpu_type": gpu_type, "gpu_count": count, "version": getrandbits(48)}
        for hour, engine, gpu_type, count in sorted(set(engine_hours))
        if hour >= since
    ]
    if rows:
        put = insert(connection, dirty_hours)
        put = put.on_conflict_do_update(
            index_elements=list(dirty_hours.primary_key.columns),
            set_={"version": dirty_hours.c.version + 1},
        )
        connection.execute(put, rows)


def pruned_before(connection: Connection) -> int:
    """Some records that ended before this time have been removed, so their hours are never rolled up
    again."""
    query = select(ledger_state.c.value).where(ledger_state.c.name == "pruned_before")
    return connection.execute(query).scalar() or 0
