"""The ledger's database: opening it, transactions and errors.

SQLite runs in WAL mode, so that readers and the writer do not block each other, and syncs at every commit,
because the usage log is deleted after it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, ExceptionContext, Table, create_engine, event
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

BUSY_SECONDS = 3.0
"""How long to wait for another writer on SQLite."""
_POSTGRESQL = {
    "connect_timeout": 3,
    # Detects a vanished host after about twenty seconds instead of the kernel's two hours.
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "florin",
}
_PSYCOPG = {"prepare_threshold": None, "client_encoding": "utf8"}
"""Prepares no statements in the server: behind PgBouncer in transaction mode, each transaction may run on
another server connection, which does not have them. And text is text, also in a database without an encoding
(SQL_ASCII), where the driver would return bytes."""

_READ_ONLY = "25006"
"""PostgreSQL's code for a write on a standby, or on a primary that was set to read-only."""


class LedgerUnavailableError(Exception):
    """The database is unavailable, locked or full, or this version of Florin cannot use it. Unwritten usage
    stays in the log."""


class UnknownSchemaError(LedgerUnavailableError):
    """The database belongs to a version of Florin whose schema this one does not know."""


REFUSALS = (LedgerUnavailableError, StatementError, ValueError, TypeError, OverflowError)
"""What a write may raise. `is_definite` says whether the rows or the database are the cause."""


def open_engine(url: URL) -> Engine:
    """Does not connect yet. Raises OSError, or errors of sqlite3 and the driver."""
    if url.get_backend_name() != "sqlite":
        own = _PSYCOPG if url.get_driver_name() == "psycopg" else {}
        engine = create_engine(url, pool_pre_ping=True, connect_args=_POSTGRESQL | own)
        event.listen(engine, "handle_error", _leave_replica)
        return engine
    if url.database and url.database != ":memory:":
        with suppress(OSError):  # connecting reports the error
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _sqlite_connected)
    event.listen(engine, "begin", _sqlite_begin)
    _wal_mode(engine)
    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction with one consistent view of the ledger."""
    with translated(), engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that commits at the end. On SQLite it is the only writer from its start, so that two
    workers cannot deadlock on upgrading a read lock."""
    with translated(), engine.execution_options(florin_write=True).begin() as connection:
        yield connection


@contextmanager
def translated() -> Iterator[None]:
    """Raise database errors as LedgerUnavailableError."""
    try:
        yield
    except (DBAPIError, PoolTimeoutError, sqlite3.Error, OSError) as error:
        cause = getattr(error, "orig", None) or error
        message = " ".join(str(cause).split())  # PostgreSQL's messages have several lines
        raise LedgerUnavailableError(f"The ledger's database failed: {message}") from error


def is_definite(error: BaseException) -> bool:
    """Whether the rows are the cause, so that retrying is useless. Other errors are the database's and may
    pass."""
    cause = error.__cause__ if isinstance(error, LedgerUnavailableError) else error
    if isinstance(cause, InterfaceError):  # sqlite3: a parameter of an unsupported type
        return isinstance(cause.orig, sqlite3.InterfaceError)
    if isinstance(cause, DBAPIError):
        return isinstance(cause, DataError | IntegrityError)
    return isinstance(cause, StatementError | ValueError | TypeError | OverflowError)


def insert(connection: Connection, table: Table) -> Any:
    """INSERT with ON CONFLICT, which the two dialects have in different classes."""
    return insert_in(connection.dialect.name, table)


def insert_in(dialect: str, table: Table) -> Any:
    """The same, for statements that are kept: building one takes longer than executing it."""
    if dialect != "postgresql":
        return sqlite_insert(table)
    from sqlalchemy.dialects.postgresql import insert as postgresql_insert  # noqa: PLC0415  # loads slowly

    return postgresql_insert(table)


def _leave_replica(context: ExceptionContext) -> None:
    """A server that accepts no writes (any more) answers pings, so its connections would stay in the pool."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


def _sqlite_connected(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # SQLAlchemy, not sqlite3, begins transactions
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
    connection.execute("PRAGMA foreign_keys = ON")
    # FULL: the log is deleted after a commit, so the commit must survive a power cut.
    connection.execute("PRAGMA synchronous = FULL")


def _sqlite_begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("florin_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _wal_mode(engine: Engine) -> None:
    """Switch to WAL mode. SQLite ignores its busy timeout here, so retry."""
    deadline = time.monotonic() + BUSY_SECONDS
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
