"""The ledger: final usage records, each once, and the price book's table. SQLite, or PostgreSQL by URL.

Synchronous on purpose: it is used from threads (the shipper's, and the reports'), never on the event loop.
Every method raises LedgerUnavailableError when the database cannot be reached in time.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import (
    Connection,
    Engine,
    Table,
    and_,
    create_engine,
    event,
    make_url,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gateway.metering.records import UsageRecord
from gateway.metering.schema import quarantine, schema, usage_records

_LOG_ONLY = {"seq", "seen"}
_COLUMNS = tuple(f.name for f in fields(UsageRecord) if f.name not in _LOG_ONLY)
_RECORD = tuple(usage_records.c[name] for name in _COLUMNS)
_BUSY_MS = 3_000
_CONNECT_SECONDS = 3
_SCHEMA_LOCK = 0x666C6F72  # "flor": PostgreSQL's advisory lock while the tables are made
assert {*_COLUMNS, "batch"} == set(usage_records.columns.keys())


class LedgerUnavailableError(Exception):
    """The database is away, locked or full. What was to be written is still in the log."""


@dataclass(frozen=True, slots=True)
class Inserted:
    new: int = 0
    duplicate: int = 0
    quarantined: int = 0


class Ledger:
    """Thread-safe. Opens nothing until it is used."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._engine: Engine | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Ledger {self._url.render_as_string()}>"

    def close(self) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the ledger from beginning to end."""
        with _translated(), self._ready().connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that commits at the end. On SQLite the only writer from the start, so that two
        workers cannot deadlock on the upgrade of a read lock."""
        with _translated(), self._ready().execution_options(florin_write=True).begin() as connection:
            yield connection

    def insert(self, records: Sequence[UsageRecord]) -> Inserted:
        """Take each id once, in one transaction. The same id with other content goes to quarantine."""
        if not records:
            return Inserted()
        rows = [_row(record) for record in records]
        with self.write() as connection:
            put = _insert(connection, usage_records).on_conflict_do_nothing(index_elements=["id"])
            # Counted by what comes back: PostgreSQL's driver has no rowcount for many rows.
            count = len(connection.execute(put.returning(usage_records.c.id), rows).all())
            if count == len(rows):
                return Inserted(new=count)
            differing = _differing(connection, rows)
            if differing:
                put = _insert(connection, quarantine).on_conflict_do_nothing()
                connection.execute(put, [_quarantined(row) for row in differing])
        known = len(rows) - count
        return Inserted(count, known - len(differing), len(differing))

    def usage(
        self,
        *,
        start: int,
        end: int,
        tenant: str | None = None,
        after: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> list[UsageRecord]:
        """Records that ended in [start, end), in order of (ended, id), those after `after`."""
        table = usage_records.c
        where = [table.ended >= start, table.ended < end]
        if tenant is not None:
            where.append(table.tenant == tenant)
        if after is not None:
            where.append(tuple_(table.ended, table.id) > after)
        query = select(*_RECORD).where(and_(*where)).order_by(table.ended, table.id).limit(limit)
        with self.read() as connection:
            return [UsageRecord(**row) for row in connection.execute(query).mappings()]

    def _ready(self) -> Engine:
        with self._lock:
            if self._engine is None:
                engine = _engine(self._url.render_as_string(hide_password=False))
                try:
                    _create(engine)
                except BaseException:
                    engine.dispose()
                    raise
                self._engine = engine
            return self._engine


def _engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, pool_pre_ping=True, connect_args={"connect_timeout": _CONNECT_SECONDS})
    if parsed.database and parsed.database != ":memory:":
        with suppress(OSError):  # the connection will say what is wrong
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, connect_args={"timeout": _BUSY_MS / 1000})
    event.listen(engine, "connect", _sqlite_connected)
    event.listen(engine, "begin", _sqlite_begin)
    return engine


def _sqlite_connected(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where SQLAlchemy says, not where sqlite3 guesses
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    connection.execute("PRAGMA foreign_keys = ON")
    # FULL: the log is deleted after a commit, so the commit must survive a power cut.
    connection.execute("PRAGMA synchronous = FULL")


def _sqlite_begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("florin_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _create(engine: Engine) -> None:
    """Make the tables, one worker at a time. (Migrations come with issue 3.)"""
    if engine.dialect.name == "sqlite":
        _wal_mode(engine)
    with engine.execution_options(florin_write=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})
        schema.create_all(connection)


def _wal_mode(engine: Engine) -> None:
    """Readers do not stop the writer. SQLite does not wait for its busy timeout here, so we do."""
    deadline = time.monotonic() + _BUSY_MS / 1000
    connection = engine.raw_connection()
    try:
        while True:
            try:
                connection.cursor().execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return
    finally:
        connection.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (DBAPIError, PoolTimeoutError, sqlite3.Error, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise LedgerUnavailableError(f"The ledger's database failed: {cause}") from error


def _insert(connection: Connection, table: Table) -> Any:
    """INSERT that knows ON CONFLICT; the two dialects spell it alike but in different classes."""
    return (postgresql_insert if connection.dialect.name == "postgresql" else sqlite_insert)(table)


def _row(record: UsageRecord) -> dict[str, Any]:
    if record.kind != "final" or record.ended is None:
        raise ValueError(f"only finals belong in the ledger, not {record.kind} {record.id}")
    return {name: getattr(record, name) for name in _COLUMNS}


def _differing(connection: Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are not what the ledger now holds under their id."""
    query = select(*_RECORD).where(usage_records.c.id.in_([row["id"] for row in rows]))
    held: dict[str, Mapping[str, Any]] = {r["id"]: dict(r) for r in connection.execute(query).mappings()}
    return [row for row in rows if held[row["id"]] != row]


def _quarantined(row: dict[str, Any]) -> dict[str, Any]:
    content = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
    return {
        "id": row["id"],
        "digest": hashlib.sha256(content).hexdigest(),
        "content": content.decode(),
        "recorded_at": time.time_ns() // 1000,
    }
