"""The ledger: the durable store of usage records and of everything computed from them. SQLite, or PostgreSQL
by URL.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from operator import attrgetter
from random import getrandbits
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Engine, and_, make_url, select, text, tuple_, union_all
from sqlalchemy.sql.selectable import CompoundSelect

from gateway.metering.ledger.continuity import Mark, mark_of
from gateway.metering.ledger.database import (
    LedgerUnavailableError,
    insert,
    open_engine,
    reading,
    translated,
    writing,
)
from gateway.metering.ledger.migrations import migrate
from gateway.metering.ledger.schema import ACROSS_HOURS, dirty_hours, ledger_state, quarantine, usage_records
from gateway.metering.records import BATCH, Outcome, UsageRecord, record_id

__all__ = [
    "HOUR",
    "EngineHour",
    "Inserted",
    "Ledger",
    "LedgerUnavailableError",
    "engine_hour_records",
    "mark_dirty",
    "next_batch",
    "pruned_before",
    "to_quarantine",
    "touched",
]

EngineHour = tuple[int, str, str, int]
"""(hour, engine, gpu_type, gpu_count): the unit of rolling up."""

HOUR = 3_600_000_000
_ATTEMPTS = 64
"""Attempts of one request that are looked up at a time."""
_LOG_ONLY = {"seq", "seen"}
_COLUMNS = tuple(f.name for f in fields(UsageRecord) if f.name not in _LOG_ONLY)
_RECORD = tuple(usage_records.c[name] for name in _COLUMNS)
_values = attrgetter(*_COLUMNS)
assert {*_COLUMNS, "batch"} == set(usage_records.columns.keys())

# Written for each database: takes half to a tenth of the time of SQLAlchemy's multi-row VALUES.
_INTO = f"INSERT INTO usage_records (batch, {', '.join(_COLUMNS)})"
_PUT_SQLITE = f"{_INTO} VALUES (?{', ?' * len(_COLUMNS)}) ON CONFLICT (id) DO NOTHING"
_PUT_POSTGRESQL = text(
    f"{_INTO} SELECT :batch, r.* FROM json_to_recordset(CAST(:rows AS json)) AS r "  # noqa: S608  # our names
    f"({', '.join(f'{c.name} {c.type}' for c in _RECORD)}) ON CONFLICT (id) DO NOTHING RETURNING id"
)


@dataclass(frozen=True, slots=True)
class Inserted:
    new: int = 0
    duplicate: int = 0
    quarantined: int = 0
    mark: Mark | None = field(default=None, compare=False)
    """Proves that the stored ones are stored; None: there are none."""

    def __add__(self, other: Inserted) -> Inserted:
        marks = [mark for mark in (self.mark, other.mark) if mark]
        return Inserted(
            self.new + other.new,
            self.duplicate + other.duplicate,
            self.quarantined + other.quarantined,
            max(marks, default=None),
        )


class Ledger:
    """The ledger's database. Thread-safe; it opens and migrates the database on first use.

    Invariants:

    - A record's id is stored once. Inserting the same record again changes nothing; different content under
    the same id goes to quarantine.
    - Records are numbered by batch, one per write transaction, in order of commit: whoever sees a batch sees
      all earlier ones. A closed period covers records by batch.
    - Inserting records marks the engine-hours they touch as dirty, in the same transaction.

    It is synchronous: use it from threads (the shipper's) or in the ledger process, never on the event loop.
    Every method raises LedgerUnavailableError if the database cannot be reached in time.
    """

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self.observe: Callable[[str, float], None] = lambda _operation, _seconds: None
        """Called with the duration of each transaction, `read` or `write`."""

    def __repr__(self) -> str:
        return f"<Ledger {self._url.render_as_string()}>"

    def close(self) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction with one consistent view of the ledger."""
        with self._timed("read"), reading(self._ready()) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that commits at the end; on SQLite it is the only writer from its start."""
        with self._timed("write"), writing(self._ready()) as connection:
            yield connection

    def time(self) -> int | None:
        """Unix microseconds by the database's clock; None for SQLite, which uses this host's."""
        with self.read() as connection:
            if connection.dialect.name != "postgresql":
                return None
            micros = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
            return int(connection.exec_driver_sql(micros).scalar_one())

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.observe(operation, time.perf_counter() - began)

    def insert(self, records: Sequence[UsageRecord]) -> Inserted:
        """Insert each record once, in one transaction, and mark the engine-hours that new records touch.

        Inserting a record again changes nothing. A record whose id is stored with other content goes to
        quarantine, as does one that arrives after the records of its time were pruned."""
        if not records:
            return Inserted()
        rows = [_row(record) for record in records]
        with self.write() as connection:
            batch = next_batch(connection)
            pruned = _pruned(connection, rows)
            if pruned:
                rows = [row for row in rows if row not in pruned]
            new = _put(connection, rows, batch)
            mark_dirty(connection, touched(row for row in rows if row["id"] in new))
            differing = _differing(connection, rows) if len(new) < len(rows) else []
            to_quarantine(connection, pruned, "pruned")
            to_quarantine(connection, differing, "differs")
            mark = mark_of(connection, [row["id"] for row in rows], new, batch)
        duplicate = len(rows) - len(new) - len(differing)
        return Inserted(len(new), duplicate, len(differing) + len(pruned), mark)

    def usage(
        self,
        *,
        start: int,
        end: int,
        tenant: str | None = None,
        after: tuple[int, str] | None = None,
        limit: int = 100,
        adapter: str | None = None,
        outcomes: Collection[str] | None = None,
        newest_first: bool = False,
    ) -> list[UsageRecord]:
        """Records that ended in [start, end), in order of (ended, id) or its reverse, those after `after`."""
        table = usage_records.c
        order = [table.ended, table.id]
        # One bound of each side only: SQLite uses the first that it is given.
        if after is not None and newest_first:
            end = min(end, after[0] + 1)
        elif after is not None:
            start = max(start, after[0])
        where = [table.ended >= start, table.ended < end]
        if tenant is not None:
            where.append(table.tenant == tenant)
        if adapter is not None:
            where.append(table.adapter == adapter)
        if outcomes is not None:
            where.append(table.outcome.in_(sorted(outcomes)))
        if after is not None:
            position = tuple_(table.ended, table.id)
            where.append(position < after if newest_first else position > after)
        by = [column.desc() for column in order] if newest_first else order
        query = select(*_RECORD).where(and_(*where)).order_by(*by).limit(limit)
        with self.read() as connection:
            return [UsageRecord(**row) for row in connection.execute(query).mappings()]

    def attempts(self, request_id: str) -> list[UsageRecord]:
        """The records of one request, in order, looked up by their ids, which derive from the request id."""
        found: list[UsageRecord] = []
        with self.read() as connection:
            while True:
                ids = [record_id(request_id, len(found) + n) for n in range(_ATTEMPTS)]
                query = select(*_RECORD).where(usage_records.c.id.in_(ids))
                rows = [UsageRecord(**row) for row in connection.execute(query).mappings()]
                found += sorted(rows, key=lambda r: r.attempt)
                if len(rows) < _ATTEMPTS:
                    return found

    def _ready(self) -> Engine:
        with self._lock, translated():
            if self._engine is None:
                engine = open_engine(self._url)
                try:
                    migrate(engine)
                except BaseException:
                    engine.dispose()
                    raise
                self._engine = engine
            return self._engine


def put_new(connection: Connection, records: Sequence[UsageRecord]) -> set[str]:
    """In a write transaction: insert records of attempts that have just ended. Returns the ids of those that
    were not stored yet."""
    if not records:
        return set()
    rows = [_row(record) for record in records]
    new = _put(connection, rows, next_batch(connection))
    mark_dirty(connection, touched(row for row in rows if row["id"] in new))
    return new


def next_batch(connection: Connection) -> int:
    """The number of this write transaction. Transactions commit in this order, because the others wait here;
    so whoever sees a batch sees all earlier ones."""
    put = insert(connection, ledger_state).values(name="batch", value=1)
    put = put.on_conflict_do_update(index_elements=["name"], set_={"value": ledger_state.c.value + 1})
    number: int = connection.execute(put.returning(ledger_state.c.value)).scalar_one()
    return number


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


def engine_hour_records(engine_hour: EngineHour, *columns: ColumnElement[Any]) -> CompoundSelect[Any]:
    """SELECT of the records that were in flight at some time in an engine-hour, unordered. Each half uses its
    own index, so the work is proportional to the records of the hour, not of the ledger."""
    hour, engine, gpu_type, gpu_count = engine_hour
    table, end = usage_records.c, hour + HOUR
    chosen = select(*(columns or _RECORD)).where(
        table.engine == engine, table.gpu_type == gpu_type, table.gpu_count == gpu_count
    )
    return union_all(
        chosen.where(table.ended >= hour, table.ended < end),
        chosen.where(ACROSS_HOURS, table.ended >= end, table.dispatched < end),
    )


def touched(rows: Iterable[Mapping[str, Any]]) -> Iterator[EngineHour]:
    """The engine-hours of [dispatched, ended]; only that of the end if the clock was set back."""
    for row in rows:
        last = row["ended"] // HOUR * HOUR
        for hour in range(min(row["dispatched"] // HOUR * HOUR, last), last + 1, HOUR):
            yield hour, row["engine"], row["gpu_type"], row["gpu_count"]


def _row(record: UsageRecord) -> dict[str, Any]:
    if record.kind != "final" or record.ended is None:
        raise ValueError(f"only finals belong in the ledger, not {record.kind} {record.id}")
    return dict(zip(_COLUMNS, _values(record), strict=True))


def _pruned(connection: Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are not stored and so old that they may have been removed."""
    since = pruned_before(connection)
    old = [row for row in rows if row["ended"] < since]
    held = _held(connection, old) if old else {}
    return [row for row in old if row["id"] not in held]


def _put(connection: Connection, rows: Sequence[dict[str, Any]], batch: int) -> set[str]:
    """Insert the rows. Returns the ids that are new."""
    if connection.dialect.name == "postgresql":
        whole = {"batch": batch, "rows": orjson.dumps(rows).decode()}
        return set(connection.execute(_PUT_POSTGRESQL, whole).scalars())
    if not rows:
        return set()
    done = connection.exec_driver_sql(_PUT_SQLITE, [(batch, *row.values()) for row in rows])
    if done.rowcount == len(rows):
        return {row["id"] for row in rows}
    mine = usage_records.c.id.in_([row["id"] for row in rows]), usage_records.c.batch == batch
    return set(connection.execute(select(usage_records.c.id).where(*mine)).scalars())


def _differing(connection: Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose content differs from that stored under their id, and that is not because a worker died
    between storing a batch's line with its record and logging that (see `held_finals`)."""
    held = _held(connection, rows)
    return [row for row in rows if held[row["id"]] != row and not _died_after(row, held[row["id"]])]


def _died_after(row: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether `row` only says what was last known of an attempt whose own final record is stored."""
    return bool(
        row["outcome"] == Outcome.ORPHANED.value
        and row["service_tier"] == stored["service_tier"] == BATCH
        and stored["billable"]
        and row["request_id"] == stored["request_id"]
    )


def _held(connection: Connection, rows: Sequence[dict[str, Any]]) -> dict[str, Mapping[str, Any]]:
    query = select(*_RECORD).where(usage_records.c.id.in_([row["id"] for row in rows]))
    return {r["id"]: dict(r) for r in connection.execute(query).mappings()}


def to_quarantine(connection: Connection, rows: Sequence[dict[str, Any]], reason: str) -> None:
    """`rows`: as in usage_records, without `batch`."""
    if rows:
        put = insert(connection, quarantine).on_conflict_do_nothing()
        connection.execute(put, [{**_content(row), "reason": reason} for row in rows])


def _content(row: dict[str, Any]) -> dict[str, Any]:
    content = orjson.dumps(row, default=str, option=orjson.OPT_SORT_KEYS)
    return {
        "id": row["id"],
        "digest": hashlib.sha256(content).hexdigest(),
        "content": content.decode(),
        "recorded_at": time.time_ns() // 1000,
    }
