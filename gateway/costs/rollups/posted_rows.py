"""What is posted of an engine-hour, in the database: its rows in `rollups`, their parts in `rollup_parts`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, delete, func, select, text

from gateway.costs.periods import Period, iso, month_of, months
from gateway.costs.rollups.engine_hour import AT, PLACE, at
from gateway.costs.rollups.parts import DIMENSIONS, PartKey
from gateway.costs.rollups.posting import FIGURES, Figures, RowKey, RowPrice
from gateway.metering.ledger.engine_hours import EngineHour as Place
from gateway.metering.ledger.schema import rollup_parts, rollups

_POSTINGS_LOCK = 0x626F6F6B  # PostgreSQL advisory lock on which month each row is posted to

Key = RowKey | PartKey
Posting = tuple[Key, RowPrice, Figures]
Rows = dict[str, list[tuple[Any, ...]]]
"""Rows to insert, by table."""

_FIGURES = len(FIGURES)
_PRICES = len(RowPrice._fields)
_KINDS: tuple[tuple[Table, type[Key]], ...] = ((rollups, RowKey), (rollup_parts, PartKey))


def here(table: Table) -> ColumnElement[bool]:
    return and_(*(table.c[name] == value for name, value in zip(PLACE, AT, strict=True)))


_FORGET = [delete(table).where(here(table)) for table, _ in _KINDS]
_FORGET_CORRECTIONS = [
    delete(table).where(here(table), table.c.posted >= bindparam("open")) for table, _ in _KINDS
]
_STANDING = [
    (kind, select(*(table.c[n] for n in (*kind._fields, *RowPrice._fields, *FIGURES))).where(here(table)))
    for table, kind in _KINDS
]
_COLUMNS = {
    table.name: (*PLACE, "posted", "correction", *kind._fields, *RowPrice._fields, *FIGURES)
    for table, kind in _KINDS
}


def lock_postings(connection: Connection) -> None:
    """In a write transaction: no one else changes roll-ups or closes a month until it ends. Take this lock
    before any other, to rule out deadlocks."""
    if connection.dialect.name == "postgresql":  # SQLite has a single writer anyway
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTINGS_LOCK})


def forget(connection: Connection, place: Place) -> None:
    """Remove everything that is posted of an engine-hour. Only for open months."""
    for statement in _FORGET:
        connection.execute(statement, at(place))


def forget_corrections(connection: Connection, place: Place, open_month: str) -> None:
    """Remove what was posted to `open_month` or later."""
    for statement in _FORGET_CORRECTIONS:
        connection.execute(statement, {**at(place), "open": open_month})


def standing(connection: Connection, place: Place) -> list[Posting]:
    """Everything that is posted of an engine-hour: rows and parts."""
    return [
        _posting(kind, row)
        for kind, query in _STANDING
        for row in map(tuple, connection.execute(query, at(place)).all())
    ]


def totals_by_place(connection: Connection, hour: int) -> dict[Place, dict[Key, Figures]]:
    """The `totals` of what is posted of each engine of an hour."""
    names, sums = posted_since(connection, hour), defaultdict[Place, dict[Key, Figures]](dict)
    for table, kind in _KINDS:
        columns = (*PLACE, *kind._fields, *FIGURES)
        where = [table.c.posted.in_(names), table.c.hour == hour]
        if table is rollup_parts:  # for the index
            where.append(table.c.dimension.in_(DIMENSIONS))
        query = select(*(table.c[name] for name in columns)).where(*where)
        first, end = len(PLACE), len(PLACE) + len(kind._fields)
        for row in map(tuple, connection.execute(query).all()):
            own, key = sums[row[:first]], kind._make(row[first:end])
            own[key] = _plus(own.get(key), row[end:])
    return {place: _without_zeros(own) for place, own in sums.items()}


def _posting(kind: type[Key], row: tuple[Any, ...]) -> Posting:
    figures = len(row) - _FIGURES
    prices = figures - _PRICES
    return kind._make(row[:prices]), RowPrice._make(row[prices:figures]), row[figures:]


def posted_since(connection: Connection, hour: int) -> Sequence[str]:
    """The months to which rows of an hour may be posted: its own, and later ones."""
    last = connection.execute(select(func.max(rollups.c.posted))).scalar_one() or ""
    first = iso(hour)[:7]
    return months(Period(month_of(first).start, month_of(max(first, last)).end)) or ()


def totals(postings: Iterable[Posting]) -> dict[Key, Figures]:
    """Sums over all postings, without those that are zero."""
    sums: dict[Key, Figures] = {}
    for key, _, figures in postings:
        sums[key] = _plus(sums.get(key), figures)
    return _without_zeros(sums)


def _without_zeros(sums: Mapping[Key, Figures]) -> dict[Key, Figures]:
    return {key: figures for key, figures in sums.items() if any(figures)}


def _plus(before: Figures | None, figures: Figures) -> Figures:
    return figures if before is None else tuple(a + b for a, b in zip(before, figures, strict=True))


def add(
    rows: Rows, place: Place, posted: str, postings: Iterable[Posting], *, correction: bool = False
) -> None:
    """Add postings to the rows to insert."""
    common = (*place, posted, correction)
    for key, price, figures in postings:
        table = rollups if isinstance(key, RowKey) else rollup_parts
        rows.setdefault(table.name, []).append((*common, *key, *price, *figures))


def put(connection: Connection, rows: Mapping[str, list[tuple[Any, ...]]]) -> None:
    """Through the driver directly: there can be a row for every few records, and binding parameters by name
    takes five times as long as the insert itself."""
    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    for table, values in rows.items():
        columns = _COLUMNS[table]
        connection.exec_driver_sql(
            f"INSERT INTO {table} ({', '.join(columns)}) "  # noqa: S608  # our own names
            f"VALUES ({', '.join([mark] * len(columns))})",
            values,
        )
