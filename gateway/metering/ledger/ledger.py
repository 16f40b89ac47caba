"""The ledger: the durable store of usage records and of everything computed from them. SQLite, or PostgreSQL
by URL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, Engine, and_, make_url, select, tuple_

from gateway.metering.ledger.continuity import Mark, mark_of, next_batch
from gateway.metering.ledger.database import open_engine, reading, translated, writing
from gateway.metering.ledger.engine_hours import mark_dirty, touched
from gateway.metering.ledger.migrations import migrate
from gateway.metering.ledger.record_rows import (
    RECORD,
    check_final,
    differing_records,
    pruned_records,
    put_records,
    row_of,
    span_of,
    to_quarantine,
)
from gateway.metering.ledger.schema import of_tenant, usage
from gateway.metering.ledger.shared_names import SharedNames
from gateway.metering.records import UsageRecord, record_id

_ATTEMPTS = 64
"""Attempts of one request that are looked up at a time."""


@dataclass(frozen=True, slots=True)
class Inserted:
    new: int = 0
    duplicate: int = 0
    quarantined: int = 0
    mark: Mark | None = field(default=None, compare=False)
    """Proves that the records are stored; None: none is."""

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
        self._names = SharedNames()  # used in one write transaction at a time
        self.observe: Callable[[str, float], None] = lambda _operation, _seconds: None
        """Called with the duration of each transaction, `read` or `write`."""

    def __repr__(self) -> str:
        return f"<Ledger {self._url.render_as_string()}>"

    @property
    def file(self) -> Path | None:
        """The file of an SQLite ledger."""
        path = self._url.database if self._url.get_backend_name() == "sqlite" else None
        return Path(path) if path else None

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
        check_final(records)
        with self.write() as connection:
            batch = next_batch(connection)
            pruned = pruned_records(connection, records)
            if pruned:
                records = [record for record in records if record not in pruned]
            new = put_records(connection, records, batch, self._names)
            mark_dirty(connection, touched(span_of(record) for record in records if record.id in new))
            differing = differing_records(connection, records) if len(new) < len(records) else []
            to_quarantine(connection, map(row_of, pruned), "pruned")
            to_quarantine(connection, map(row_of, differing), "differs")
            mark = mark_of(connection, [record.id for record in records], new, batch)
        duplicate = len(records) - len(new) - len(differing)
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
        dispatched_from: int | None = None,
    ) -> list[UsageRecord]:
        """Records that ended in [start, end), in order of (ended, id) or its reverse, those after `after`.
        `dispatched_from`: only those of attempts that began then or later."""
        table = usage.c
        order = [table.ended, table.id]
        # One bound of each side only: SQLite uses the first that it is given.
        if after is not None and newest_first:
            end = min(end, after[0] + 1)
        elif after is not None:
            start = max(start, after[0])
        where = [table.ended >= start, table.ended < end]
        if tenant is not None:
            where.append(of_tenant(tenant))
        if adapter is not None:
            where.append(table.adapter == adapter)
        if dispatched_from is not None:
            where.append(table.dispatched >= dispatched_from)
        if outcomes is not None:
            where.append(table.outcome.in_(sorted(outcomes)))
        if after is not None:
            position = tuple_(table.ended, table.id)
            where.append(position < after if newest_first else position > after)
        by = [column.desc() for column in order] if newest_first else order
        query = select(*RECORD).where(and_(*where)).order_by(*by).limit(limit)
        with self.read() as connection:
            return [UsageRecord(**row) for row in connection.execute(query).mappings()]

    def attempts(self, request_id: str) -> list[UsageRecord]:
        """The records of one request, in order, looked up by their ids, which derive from the request id."""
        records: list[UsageRecord] = []
        with self.read() as connection:
            while True:
                ids = [record_id(request_id, len(records) + n) for n in range(_ATTEMPTS)]
                query = select(*RECORD).where(usage.c.id.in_(ids))
                rows = [UsageRecord(**row) for row in connection.execute(query).mappings()]
                records += sorted(rows, key=lambda r: r.attempt)
                if len(rows) < _ATTEMPTS:
                    return records

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
