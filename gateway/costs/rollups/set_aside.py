"""Engine-hours that cannot be rolled up: which there are, and what is done about them.

The roller sets an hour aside when its records or their sums cannot be. It then stands in no report, no
metric of cost and no bill, and its month cannot be closed. Whenever something of the hour changes it is
tried again. `exclude` is the decision of a person: the records that cannot be go to quarantine, and the rest
of the hour is rolled up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, select

from gateway.costs.periods import LAST_HOUR, Period, iso, month
from gateway.costs.rollups.posting import READ
from gateway.costs.rollups.soundness import LONGEST, UnsoundError, check_place, fault
from gateway.metering.ledger.audit_log import record as note
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.ledger import (
    Ledger,
    PoolHour,
    mark_dirty,
    next_batch,
    pool_hour_records,
    pruned_before,
    to_quarantine,
    touched,
)
from gateway.metering.ledger.schema import periods, set_aside_hours, usage_records

PLACE = ("hour", "engine", "gpu_type", "gpu_count")
_RECORD = tuple(str(c.name) for c in usage_records.columns if c.name != "batch")
_MOST_REASON = 1000
_ROWS = 500


@dataclass(frozen=True, slots=True)
class SetAside:
    hour: int
    engine: str
    gpu_type: str
    gpu_count: int
    since: int
    """When it was first found so. Unix microseconds, as `hour`."""
    reason: str

    @property
    def place(self) -> PoolHour:
        return self.hour, self.engine, self.gpu_type, self.gpu_count

    def __str__(self) -> str:
        return f"{self.engine} ({self.gpu_type}) at {hour_text(self.hour)}: {self.reason}"

    def document(self) -> dict[str, Any]:
        return {
            "hour": hour_text(self.hour),
            "engine": self.engine,
            "gpu_type": self.gpu_type,
            "gpu_count": self.gpu_count,
            "since": iso(self.since),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Excluded:
    quarantined: int
    """Records that went to quarantine."""
    sealed: int
    """Records that a closed month covers: they stay, as do the figures of that month."""


class NotSetAsideError(Exception):
    """There is no such hour."""


def hour_text(hour: int) -> str:
    """ISO 8601, or the number where it is no time that can be written."""
    return iso(hour) if 0 <= hour <= LAST_HOUR else str(hour)


def read_set_aside(
    connection: Connection, within: Period | None = None, limit: int | None = None
) -> list[SetAside]:
    """In order of their hours."""
    c = set_aside_hours.c
    query = select(*(c[name] for name in (*PLACE, "since", "reason"))).order_by(*(c[name] for name in PLACE))
    if within is not None:
        query = query.where(c.hour >= within.start, c.hour < within.end)
    return [SetAside(*row) for row in connection.execute(query.limit(limit))]


def list_set_aside(ledger: Ledger, limit: int = 1000) -> list[dict[str, Any]]:
    """Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return [one.document() for one in read_set_aside(connection, limit=limit)]


def count_set_aside(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(set_aside_hours)).scalar_one())


def put_set_aside(connection: Connection, place: PoolHour, reason: str, now: int) -> bool:
    """In a write transaction. `since` stays what it was. Whether it is new."""
    new = connection.execute(select(set_aside_hours.c.since).where(_at(place))).first() is None
    reason = reason.replace("\0", "\\0")[:_MOST_REASON]
    put = insert(connection, set_aside_hours).values(
        **dict(zip(PLACE, place, strict=True)), since=now, reason=reason
    )
    connection.execute(
        put.on_conflict_do_update(index_elements=list(PLACE), set_={"reason": put.excluded.reason})
    )
    return new


def forget_set_aside(connection: Connection, places: Iterable[PoolHour]) -> None:
    for place in places:
        connection.execute(delete(set_aside_hours).where(_at(place)))


def exclude(ledger: Ledger, *, engine: str, hour: int, everything: bool, actor: str, now: int) -> Excluded:
    """Quarantine the records of an hour set aside that cannot be, or `everything` of it, and mark it to be
    rolled up again; without such a record it is only tried again. Records that a closed month covers stay
    where they are, for its proofs; if only such are left, the hour is settled as the closed months have it.

    Raises NotSetAsideError, LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # nobody inserts or closes meanwhile
        found = [one for one in read_set_aside(connection) if (one.engine, one.hour) == (engine, hour)]
        if not found:
            raise NotSetAsideError(f"{engine} at {hour_text(hour)} is not set aside.")
        covered = _is_covered(connection)
        quarantined = sealed = 0
        for one in found:
            chosen = _chosen(connection, one.place, everything=everything)
            free = [row for row in chosen if not covered(row)]
            _remove(connection, free)
            again = {*_touched(free), one.place}
            if len(free) < len(chosen) or not _is_place(one.place) or hour < pruned_before(connection):
                again.discard(one.place)  # it would only be set aside once more
                forget_set_aside(connection, [one.place])
            mark_dirty(connection, again)
            quarantined += len(free)
            sealed += len(chosen) - len(free)
        told = {"quarantined": quarantined, "sealed": sealed, "everything": everything}
        note(connection, actor, "usage.exclude", f"{engine}@{hour_text(hour)}", told, now)
    return Excluded(quarantined, sealed)


def _chosen(connection: Connection, place: PoolHour, *, everything: bool) -> list[dict[str, Any]]:
    """Records of the hour, with their batch."""
    columns = [usage_records.c[name] for name in (*_RECORD, "batch")]
    rows = [dict(row) for row in connection.execute(pool_hour_records(place, *columns)).mappings()]
    return [row for row in rows if everything or fault(tuple(row[name] for name in READ))]


def _is_covered(connection: Connection) -> Callable[[dict[str, Any]], bool]:
    """Whether a closed month, or one being closed, covers a record."""
    c = periods.c
    last = connection.execute(select(c.month, c.cutoff_batch).order_by(c.month.desc()).limit(1)).first()
    if last is None:
        return lambda _: False
    end, cutoff = month(last[0]).end, last[1]
    return lambda row: bool(row["batch"] <= cutoff and row["ended"] < end)


def _remove(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    to_quarantine(connection, [{n: row[n] for n in _RECORD} for row in rows], "excluded")
    for first in range(0, len(rows), _ROWS):
        ids = [row["id"] for row in rows[first : first + _ROWS]]
        connection.execute(delete(usage_records).where(usage_records.c.id.in_(ids)))


def _touched(rows: Iterable[dict[str, Any]]) -> Iterator[PoolHour]:
    """All hours that they stood in; of those that cannot have run so long, none but the one in hand."""
    for row in rows:
        if row["ended"] - row["dispatched"] <= LONGEST:
            yield from touched([row])


def _is_place(place: PoolHour) -> bool:
    try:
        check_place(place[0], place[3])
    except UnsoundError:
        return False
    return True


def _at(place: PoolHour) -> ColumnElement[bool]:
    return and_(*(set_aside_hours.c[name] == value for name, value in zip(PLACE, place, strict=True)))
