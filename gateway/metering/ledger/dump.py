"""The ledger's rows as JSON lines, the same for SQLite and PostgreSQL, so that either can be restored to the
other. A dump is restored at the schema revision that it was made at, and then migrated.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Engine, MetaData, Select, Table, func, insert, inspect, select, text

from gateway.metering.ledger.database import writing
from gateway.metering.ledger.identity import IDENTITY
from gateway.metering.ledger.migrations import HEAD, REVISIONS, SINCE, revision_of, upgrade
from gateway.metering.ledger.schema import schema

ROWS: Final = 500
"""Rows in memory at a time."""
_BYTES: Final = "base64"


class RowsDigest:
    """A digest of a table's rows that does not depend on their order, which differs between databases."""

    def __init__(self) -> None:
        self.rows = 0  # mutable: what was added
        self._sum = 0

    def add(self, line: bytes) -> None:
        self.rows += 1
        self._sum += int.from_bytes(hashlib.sha256(line).digest())

    def hexdigest(self) -> str:
        return f"{self._sum % (1 << 256):064x}"


def tables(connection: Connection) -> list[Table]:
    """Florin's tables in this database, those that others refer to first."""
    metadata = MetaData()
    there = schema.tables.keys() & set(inspect(connection).get_table_names())
    metadata.reflect(connection, only=sorted(there))
    return metadata.sorted_tables


def lines(connection: Connection, table: Table) -> Iterator[bytes]:
    """Each row as a JSON array of its columns in the order of `table`."""
    rows = connection.execute(_rows(table), execution_options={"yield_per": ROWS})
    for row in rows:
        yield orjson.dumps(tuple(row), default=_encoded)


def is_empty(connection: Connection) -> bool:
    return all(connection.execute(_rows(table).limit(1)).first() is None for table in tables(connection))


def _rows(table: Table) -> Select[Any]:
    """All but the ledger's identity, since what is restored elsewhere is another ledger, and which versions
    may write to it, since it may be restored by another version."""
    query = select(table)
    return query.where(table.c.name.not_in((IDENTITY, SINCE))) if table.name == "ledger_state" else query


def restore(
    engine: Engine,
    revision: str,
    columns: dict[str, list[str]],
    read: Callable[[str], Iterable[bytes]],
    progress: Callable[[int], None],
) -> None:
    """Fill a database without rows, in one transaction: it is complete or as it was. `columns`: the dump's
    tables and their columns. `read`: a table's lines. `progress` is told the number of rows of each batch.

    Raises ValueError if the database has rows or another revision, or if the dump's revision is unknown;
    LedgerUnavailableError."""
    if revision not in REVISIONS:
        raise ValueError(f"The ledger's schema {revision} is unknown.")
    with writing(engine) as connection:
        now = revision_of(connection)
        if now is None:
            upgrade(connection, revision)
        elif now != revision or not is_empty(connection):
            raise ValueError("The ledger's database is in use.")
        for table in tables(connection):
            if table.name in columns:
                _fill(connection, table, columns[table.name], read(table.name), progress)
        if revision != HEAD:
            upgrade(connection, HEAD)


def _fill(
    connection: Connection,
    table: Table,
    columns: list[str],
    rows: Iterable[bytes],
    progress: Callable[[int], None],
) -> None:
    left = iter(rows)
    while batch := [_row(columns, line) for line in islice(left, ROWS)]:
        connection.execute(insert(table), batch)
        progress(len(batch))
    if connection.dialect.name == "postgresql":
        _advance_sequence(connection, table)


def _advance_sequence(connection: Connection, table: Table) -> None:
    """The next id that PostgreSQL assigns follows those restored."""
    if "id" not in table.columns:
        return
    parameters = {"table": table.name}
    sequence = connection.execute(text("SELECT pg_get_serial_sequence(:table, 'id')"), parameters).scalar()
    last = sequence and connection.execute(select(func.max(table.c.id))).scalar()
    if last:
        connection.execute(text("SELECT setval(:sequence, :last)"), {"sequence": sequence, "last": last})


def _row(columns: list[str], line: bytes) -> dict[str, Any]:
    values = orjson.loads(line)
    return {name: _decoded(value) for name, value in zip(columns, values, strict=True)}


def _encoded(value: object) -> Any:
    if isinstance(value, bytes | memoryview):
        return {_BYTES: b64encode(value).decode()}
    raise TypeError


def _decoded(value: Any) -> Any:
    return b64decode(value[_BYTES]) if isinstance(value, dict) else value
