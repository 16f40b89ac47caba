"""SQL statements for SQLite are compiled once a process, not once for each ledger: each test has a ledger of its
own, and otherwise spends a quarter of its time on compiling what the one before it compiled."""

from __future__ import annotations

from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

_COMPILED: LRUCache[object, object] = LRUCache(2_000)


def compile_once() -> None:
    event.listen(Engine, "engine_connect", _connected)


def _connected(connection: Connection) -> None:
    if type(connection.dialect) is SQLiteDialect_pysqlite:
        connection.dialect = _the_first(connection.dialect)
        connection.execution_options(compiled_cache=_COMPILED)


_first: list[Dialect] = []


def _the_first(dialect: Dialect) -> Dialect:
    """What is compiled is kept by dialect, and each engine makes one of its own. They are all alike."""
    if not _first:
        _first.append(dialect)
    return _first[0]
