"""Engine-hours that cannot be rolled up: listing them, and deciding what happens to them.

The roll-up sets an hour aside when its records or their sums are implausible. The hour is then in no report,
no cost metric and no bill, and its month cannot be closed. It is retried whenever one of its inputs changes.
`exclude` is a person's decision: the implausible records go to quarantine, and the rest of the hour is rolled
up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, select

from gateway.costs.periods import LAST_HOUR, Period, iso, month_of
from gateway.costs.rollups.plausibility import LONGEST, ImplausibleError, check_place, fault
from gateway.costs.rollups.posting import READ
from gateway.metering.ledger.audit_log import record as note
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.engine_hours import EngineHour, mark_dirty, pruned_before, touched
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.record_rows import RECORD, SPAN, engine_hour_records, to_quarantine
from gateway.metering.ledger.schema import periods, set_aside_hours, usage, usage_records

PLACE = ("hour", "engine", "gpu_type", "gpu_count")
_RECORD = tuple(str(column.name) for column in RECORD)
_span_of = itemgetter(*SPAN)
_MOST_REASON = 1000
_ROWS = 500


@dataclass(frozen=True, slots=True)
class SetAside:
    hour: int
    engine: str
    gpu_type: str
    gpu_count: int
    since: int
    """When it was first set aside. Unix microseconds, as `hour`."""
    reason: str

    @property
    def place(self) -> EngineHour:
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
    """Records moved to quarantine."""
    kept: int
    """Records covered by a closed month: they stay, and so do the figures of that month."""


class NotSetAsideError(Exception):
    """No such hour is set aside."""


def hour_text(hour: int) -> str:
    """ISO 8601, or the number if it is out of range."""
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
        return [hour.document() for hour in read_set_aside(connection, limit=limit)]


def count_set_aside(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(set_aside_hours)).scalar_one())


def put_set_aside(connection: Connection, place: EngineHour, reason: str, now: int) -> bool:
    """In a write transaction. Keeps an existing `since`. Returns whether the hour is new."""
    new = connection.execute(select(set_aside_hours.c.since).where(_at(place))).first() is None
    reason = reason.replace("\0", "\\0")[:_MOST_REASON]
    put = insert(connection, set_aside_hours).values(
        **dict(zip(PLACE, place, strict=True)), since=now, reason=reason
    )
    connection.execute(
        put.on_conflict_do_update(index_elements=list(PLACE), set_={"reason": put.excluded.reason})
    )
    return new


def forget_set_aside(connection: Connection, places: Iterable[EngineHour]) -> None:
    for place in places:
        connection.execute(delete(set_aside_hours).where(_at(place)))


def exclude(ledger: Ledger, *, engine: str, hour: int, everything: bool, actor: str, now: int) -> Excluded:
    """Quarantine the implausible records of an hour that is set aside, or `everything` in it, and mark it to
    be rolled up again; without such records it is only retried. Records covered by a closed month stay, for
    its proofs; if only such records are left, the hour keeps the figures of the closed months.

    Raises NotSetAsideError, LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # keeps others from inserting or closing meanwhile
        matching = [
            aside for aside in read_set_aside(connection) if (aside.engine, aside.hour) == (engine, hour)
        ]
        if not matching:
            raise NotSetAsideError(f"{engine} at {hour_text(hour)} is not set aside.")
        covered = _is_covered(connection)
        quarantined = kept = 0
        for aside in matching:
            chosen = _chosen(connection, aside.place, everything=everything)
            free = [row for row in chosen if not covered(row)]
            _remove(connection, free)
            again = {*_touched(free), aside.place}
            if len(free) < len(chosen) or not _is_place(aside.place) or hour < pruned_before(connection):
                again.discard(aside.place)  # it would only be set aside again
                forget_set_aside(connection, [aside.place])
            mark_dirty(connection, again)
            quarantined += len(free)
            kept += len(chosen) - len(free)
        counts = {"quarantined": quarantined, "kept": kept, "everything": everything}
        note(connection, actor, "usage.exclude", f"{engine}@{hour_text(hour)}", counts, now)
    return Excluded(quarantined, kept)


def _chosen(connection: Connection, place: EngineHour, *, everything: bool) -> list[dict[str, Any]]:
    """Records of the hour, with their batch."""
    columns = [*RECORD, usage.c.batch]
    rows = [dict(row) for row in connection.execute(engine_hour_records(place, *columns)).mappings()]
    return [row for row in rows if everything or fault(tuple(row[name] for name in READ))]


def _is_covered(connection: Connection) -> Callable[[dict[str, Any]], bool]:
    """A predicate: whether a closed month, or one being closed, covers a record."""
    c = periods.c
    last = connection.execute(select(c.month, c.cutoff_batch).order_by(c.month.desc()).limit(1)).first()
    if last is None:
        return lambda _: False
    end, cutoff = month_of(last[0]).end, last[1]
    return lambda row: bool(row["batch"] <= cutoff and row["ended"] < end)


def _remove(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    to_quarantine(connection, [{n: row[n] for n in _RECORD} for row in rows], "excluded")
    for first in range(0, len(rows), _ROWS):
        ids = [row["id"] for row in rows[first : first + _ROWS]]
        connection.execute(delete(usage_records).where(usage_records.c.id.in_(ids)))


def _touched(rows: Iterable[dict[str, Any]]) -> Iterator[EngineHour]:
    """All hours the records touch; records with an impossible duration touch only the current one."""
    for row in rows:
        if row["ended"] - row["dispatched"] <= LONGEST:
            yield from touched([_span_of(row)])


def _is_place(place: EngineHour) -> bool:
    try:
        check_place(place[0], place[3])
    except ImplausibleError:
        return False
    return True


def _at(place: EngineHour) -> ColumnElement[bool]:
    return and_(*(set_aside_hours.c[name] == value for name, value in zip(PLACE, place, strict=True)))
