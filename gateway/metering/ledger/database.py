"""The ledger's database: how it is opened, what a transaction is, and what may go wrong.

SQLite runs in WAL mode, so that readers and the one writer do not stop each other, and syncs at every commit:
the usage log is deleted after it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

BUSY_SECONDS = 3.0
"""How long to wait for another's write on SQLite."""
_POSTGRESQL = {
    "connect_timeout": 3,
    # A host that vanished is noticed after some twenty seconds, not after the kernel's two hours.
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "florin",
}


class LedgerUnavailableError(Exception):
    """The database is away, locked or full, or not one that this Florin can use. What was to be written is
    still in the log."""


class LedgerTooNewError(LedgerUnavailableError):
    """A later Florin has migrated the database."""


REFUSALS = (LedgerUnavailableError, StatementError, ValueError, TypeError, OverflowError)
"""What a write may raise. `is_definite` tells the rows' fault from the database's."""


def open_engine(url: URL) -> Engine:
    """Connects to nothing yet. Raises OSError or sqlite3's and the driver's errors."""
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True, connect_args=_POSTGRESQL)
    if url.database and url.database != ":memory:":
        with suppress(OSError):  # the connection will say what is wrong
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _sqlite_connected)
    event.listen(engine, "begin", _sqlite_begin)
    _wal_mode(engine)
    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees one state of the ledger from beginning to end."""
    with translated(), engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that commits at the end. On SQLite the only writer from the start, so that two workers
    cannot deadlock on the upgrade of a read lock."""
    with translated(), engine.execution_options(florin_write=True).begin() as connection:
        yield connection


@contextmanager
def translated() -> Iterator[None]:
    """What a database can say becomes a LedgerUnavailableError."""
    try:
        yield
    except (DBAPIError, PoolTimeoutError, sqlite3.Error, OSError) as error:
        cause = getattr(error, "orig", None) or error
        said = " ".join(str(cause).split())  # PostgreSQL's client says it in several lines
        raise LedgerUnavailableError(f"The ledger's database failed: {said}") from error


def is_definite(error: BaseException) -> bool:
    """Whether it was the rows: they cannot be stored, however often it is tried. Anything else is the
    database's, which another time will answer otherwise."""
    cause = error.__cause__ if isinstance(error, LedgerUnavailableError) else error
    if isinstance(cause, InterfaceError):  # of sqlite3: a parameter of a type that it has not
        return isinstance(cause.orig, sqlite3.InterfaceError)
    if isinstance(cause, DBAPIError):
        return isinstance(cause, DataError | IntegrityError)
    return isinstance(cause, StatementError | ValueError | TypeError | OverflowError)


def insert(connection: Connection, table: Table) -> Any:
    """INSERT that knows ON CONFLICT; the two dialects spell it alike but in different classes."""
    if connection.dialect.name != "postgresql":
        return sqlite_insert(table)
    from sqlalchemy.dialects.postgresql import insert as postgresql_insert  # noqa: PLC0415  # loads slowly

    return postgresql_insert(table)


def _sqlite_connected(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where SQLAlchemy says, not where sqlite3 guesses
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
    connection.execute("PRAGMA foreign_keys = ON")
    # FULL: the log is deleted after a commit, so the commit must survive a power cut.
    connection.execute("PRAGMA synchronous = FULL")


def _sqlite_begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("florin_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _wal_mode(engine: Engine) -> None:
    """Readers do not stop the writer. SQLite does not wait for its busy timeout here, so we do."""
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
