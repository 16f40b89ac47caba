"""Bulk-loads the month into a ledger. Rows, batch numbers and marks are the same as from the shipper; only
the transactions are larger.

Python makes some 50,000 rows a second, so a month of many millions is made from fewer rows, each of which the
database copies: with identifiers and times of its own, and the same tenant, engine and tokens."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import cast

import psycopg
from sqlalchemy import Connection, insert, make_url, text

from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.record_rows import STORED, stored_rows
from gateway.metering.ledger.schema import engine_spans, ledger_state, prices, usage_records
from gateway.metering.ledger.shared_names import SharedNames
from gateway.metering.records import UsageRecord
from gateway.units import HOUR
from loadtests.ledger.month import BASE_MODEL, COLUMNS, HOURS, START, Month, Row, engines

_COLUMNS = ("batch", *STORED)
Put = Callable[[list[Row]], None]
Progress = Callable[[int], None]
RATES = {"H200": 4_310_000, "H100": 2_990_000, "A100": 1_790_000, "L40S": 990_000}
"""Micro-dollars per GPU-hour."""
_STARTUP = 4 * 60_000_000
_DAY = 24 * HOUR
_APART = 1_013
"""Microseconds between the copies of a row: the same times would be easier to roll up than real ones."""


def load(
    url: str, records: int, progress: Progress = lambda _: None, *, copies: int = 1, hours: int = HOURS
) -> None:
    """Load the month into an empty ledger, without rolling it up: `records // copies` rows, `copies` times,
    or those of its first `hours`. `progress` receives the records so far."""
    ledger = Ledger(url)
    with ledger.write() as connection:  # the tables
        connection.execute(insert(prices), _prices())
        connection.execute(insert(engine_spans), list(_spans()))
    month, names = Month(records // copies), SharedNames()
    indexes = [] if copies == 1 else sorted(usage_records.indexes, key=lambda index: str(index.name))
    with ledger.write() as connection:  # sorting them at the end is quicker than growing them
        for index in indexes:
            index.drop(connection)
    with _bulk(url, copies) as put:
        for rows in islice(month.hours(), hours):
            hour_records = [UsageRecord(**dict(zip(COLUMNS[:-1], row[:-1], strict=True))) for row in rows]
            with ledger.write() as connection:
                stored = stored_rows(connection, hour_records, names)
            put([(row[-1], *own) for row, own in zip(rows, stored, strict=True)])
            progress(month.made * copies)
    for index in indexes:
        with ledger.write() as connection:
            index.create(connection)
    with ledger.write() as connection:
        connection.execute(insert(ledger_state), {"name": "batch", "value": month.batch})
        mark_dirty(connection, month.touched)
        mark_dirty(
            connection,
            (
                (START + hour * HOUR, e.name, e.gpu_type, e.gpu_count)
                for e in engines()
                for hour in range(hours)
            ),
        )
    _settle(ledger)
    ledger.close()


@contextmanager
def _bulk(url: str, copies: int) -> Iterator[Put]:
    sqlite = url.startswith("sqlite")
    database = make_url(url).database or ""
    with _into_sqlite(database, copies) if sqlite else _into_postgresql(url, copies) as put:
        yield put


@contextmanager
def _into_sqlite(path: str, copies: int) -> Iterator[Put]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")  # a lost month can be regenerated
    connection.execute("PRAGMA cache_size = -1500000")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.create_function("set_byte", 3, _set_byte)
    table = "usage_records" if copies == 1 else "template"
    connection.execute(_TEMPLATE)
    statement = f"INSERT INTO {table} ({', '.join(_COLUMNS)}) VALUES (?{', ?' * (len(_COLUMNS) - 1)})"  # noqa: S608  # our names

    def put(rows: list[Row]) -> None:
        connection.execute("BEGIN")
        connection.executemany(statement, rows)
        if copies > 1:
            connection.execute(_copied("max", copies))
            connection.execute("DELETE FROM template")
        connection.execute("COMMIT")

    try:
        yield put
    finally:
        connection.close()


def _set_byte(data: bytes, position: int, value: int) -> bytes:
    """As PostgreSQL's."""
    return data[:position] + bytes([value]) + data[position + 1 :]


@contextmanager
def _into_postgresql(url: str, copies: int) -> Iterator[Put]:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    table = "usage_records" if copies == 1 else "template"
    with psycopg.connect(plain) as connection:
        connection.execute(_TEMPLATE)

        def put(rows: list[Row]) -> None:
            with connection.cursor().copy(f"COPY {table} ({', '.join(_COLUMNS)}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            if copies > 1:
                connection.execute(_copied("greatest", copies).encode())
                connection.execute("TRUNCATE template")
            connection.commit()

        yield put


_TEMPLATE = "CREATE TEMP TABLE template AS SELECT * FROM usage_records WHERE false"
_COPY = 6
"""The byte of an id that tells copies apart: behind the time, at the beginning of the row's number."""


def _copied(most: str, copies: int) -> str:
    """SQL that inserts the rows of `template` into `usage_records`, `copies` times. `most`: the greatest of
    two values."""
    own = {"id": f"set_byte(id, {_COPY}, copy)"} | {
        name: f"{most}({name} - copy * {_APART}, {START})" for name in ("dispatched", "first_token", "ended")
    }
    own["first_token"] = f"CASE WHEN first_token IS NULL THEN NULL ELSE {own['first_token']} END"
    selected = ", ".join(own.get(name, name) for name in _COLUMNS)
    numbers = ", ".join(f"({number})" for number in range(copies))
    return (
        f"WITH copies (copy) AS (VALUES {numbers}) INSERT INTO usage_records ({', '.join(_COLUMNS)}) "  # noqa: S608  # our names
        f"SELECT {selected} FROM copies CROSS JOIN template"
    )


def _prices() -> list[dict[str, object]]:
    same = {"region": "", "purchase": "on_demand", "currency": "USD", "valid_from": 0, "recorded_at": 0}
    return [{"gpu_type": gpu, "rate_micros": rate, **same} for gpu, rate in RATES.items()]


def _spans() -> Iterator[dict[str, object]]:
    """Each engine exists all month, is seen by two workers, and restarts every Sunday night."""
    for engine in engines():
        common = {
            "engine": engine.name, "gpu_type": engine.gpu_type, "gpu_count": engine.gpu_count, "region": "",
            "purchase": "on_demand", "base_model": BASE_MODEL,
        }  # fmt: skip  # one line
        for start in range(START, START + HOURS * HOUR, 7 * _DAY):
            end = min(start + 7 * _DAY, START + HOURS * HOUR)
            for worker in ("worker-1", "worker-2"):
                here = {**common, "worker": worker, "started": start}
                yield {**here, "phase": "startup", "seen": start + _STARTUP}
                yield {**here, "phase": "up", "started": start + _STARTUP, "seen": end}


def _settle(ledger: Ledger) -> None:
    """Background maintenance that the database would have done meanwhile: checkpoint, statistics."""
    with ledger.read() as connection:
        if connection.dialect.name == "sqlite":
            return
    with ledger.write() as connection:
        connection.execute(text("ANALYZE"))


def size(url: str) -> int:
    """Size of the database in bytes."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return sum(p.stat().st_size for p in Path(parsed.database or "").parent.glob("*.db*"))
    ledger = Ledger(url)
    with ledger.read() as connection:
        size_bytes = _size(connection)
    ledger.close()
    return size_bytes


def _size(connection: Connection) -> int:
    return cast(int, connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
