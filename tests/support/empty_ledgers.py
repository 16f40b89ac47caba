"""Ledgers, one for each test that asks, without migrating each, and without filling alike each that are filled alike.

On SQLite it is a copy of one file. On PostgreSQL, copying a database takes a third of a second of processor time, and
hundreds of tests ask for one. So a database goes from test to test, emptied in between; one whose schema a test has
changed is dropped.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from sqlalchemy import make_url

from gateway.metering.ledger.ledger import Ledger
from loadtests.postgres import Postgres

_SCHEMA: LiteralString = """
SELECT (SELECT array_agg((oid, relname, relkind, relnatts, relchecks, relhastriggers)::text ORDER BY oid)
          FROM pg_class WHERE relnamespace = 'public'::regnamespace),
       (SELECT array_agg((attrelid, attnum, attname, atttypid, attnotnull, atthasdef)::text
                         ORDER BY attrelid, attnum)
          FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE relnamespace = 'public'::regnamespace),
       (SELECT array_agg((oid, convalidated)::text ORDER BY oid) FROM pg_constraint
         WHERE connamespace = 'public'::regnamespace),
       (SELECT array_agg(oid ORDER BY oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace),
       (SELECT array_agg((oid, tgenabled)::text ORDER BY oid) FROM pg_trigger),
       (SELECT array_agg(setconfig::text) FROM pg_db_role_setting),
       (SELECT array_agg(version_num) FROM alembic_version)
"""
"""What emptying does not put back."""
_OTHERS: LiteralString = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_WRITTEN: LiteralString = """
SELECT string_agg(quote_ident(relname), ', ') FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'alembic_version'
   AND pg_relation_size(oid) > 0
"""
_IDS: LiteralString = """
SELECT setval(quote_ident(sequencename)::regclass, start_value, false) FROM pg_sequences
 WHERE last_value IS NOT NULL
"""
"""Tests name the ids that rows get."""


class EmptyLedgers:
    """Databases of one server, each an empty ledger when it is lent. Mutable: the ones that lie ready."""

    def __init__(self, server: Postgres, template: str) -> None:
        self._server = server
        self._template = template
        self._ready: list[tuple[str, Any]] = []
        self._made = ExitStack()

    @contextmanager
    def lend(self) -> Iterator[str]:
        """The URL of an empty ledger. Connections that are left open at the end are closed."""
        url, schema = self._ready.pop() if self._ready else self._make()
        yield url
        with _connect(url) as connection:
            connection.execute(_OTHERS)
            if _schema(connection) == schema:
                _empty(connection)
                self._ready.append((url, schema))

    def close(self) -> None:
        """Drop them all, also those that were not lent again."""
        self._ready.clear()
        self._made.close()

    def _make(self) -> tuple[str, Any]:
        url = self._made.enter_context(self._server.database(self._template))
        with _connect(url) as connection:
            return url, _schema(connection)


def _connect(url: str) -> psycopg.Connection:
    parsed = make_url(url)
    return psycopg.connect(
        host=parsed.host, port=parsed.port or 0, user=parsed.username, dbname=parsed.database, autocommit=True
    )


def _schema(connection: psycopg.Connection) -> Any:
    return connection.execute(_SCHEMA).fetchone()


def _empty(connection: psycopg.Connection) -> None:
    (written,) = connection.execute(_WRITTEN).fetchone() or (None,)
    if written:
        connection.execute("SET session_replication_role = replica")  # the audit log refuses, by a trigger
        connection.execute(f"TRUNCATE {written} CASCADE".encode())
    connection.execute(_IDS)


Fill = Callable[..., object]
"""What puts something into a ledger, the same at each call: a function of a module, for it is called once a process."""


def put_sqlite(file: Path, fill: Fill | None = None, *args: Hashable) -> Path:
    """Make a ledger there, and its directory. It is empty, or holds what `fill(ledger, *args)` puts into it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_bytes(_sqlite(fill, *args))
    return file


@functools.cache
def _sqlite(fill: Fill | None, *args: Hashable) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "ledger.db")
        if fill:
            file.write_bytes(_sqlite(None))
        ledger = Ledger(f"sqlite:///{file}")
        with ledger.read():
            pass
        if fill:
            fill(ledger, *args)
        ledger.close()
        return file.read_bytes()
