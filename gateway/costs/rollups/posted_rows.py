"""What is posted of an engine-hour, in the database: its rows in `rollups`, their parts in `rollup_parts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, delete, select

from gateway.costs.rollups.engine_hour import AT, PLACE, at
from gateway.costs.rollups.parts import DIMENSIONS, PartKey
from gateway.costs.rollups.posting import FIGURES, Figures, RowKey, RowPrice
from gateway.metering.ledger.engine_hours import EngineHour as Place
from gateway.metering.ledger.schema import rollup_parts, rollups

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
        (
            kind(*row[: -_PRICES - _FIGURES]),
            RowPrice(*row[-_PRICES - _FIGURES : -_FIGURES]),
            tuple(row[-_FIGURES:]),
        )
        for kind, query in _STANDING
        for row in connection.execute(query, at(place))
    ]


def divided(postings: Iterable[Posting]) -> bool:
    """Whether the parts by key, which every request has, account for the rows. They do not where rows were
    posted before there were parts, or by a gateway of an earlier version during an upgrade: then parts are
    neither corrected nor compared."""
    rows: dict[RowKey, Figures] = {}
    keyed: dict[RowKey, Figures] = {}
    for key, figures in totals(postings).items():
        if isinstance(key, RowKey):
            if key.tenant:
                rows[key] = figures
        elif key.dimension == DIMENSIONS[0]:
            row = RowKey._make(key[: len(RowKey._fields)])
            keyed[row] = _plus(keyed.get(row), figures)
    return rows == keyed


def totals(postings: Iterable[Posting]) -> dict[Key, Figures]:
    """Sums over all postings, without those that are zero."""
    sums: dict[Key, Figures] = {}
    for key, _, figures in postings:
        sums[key] = _plus(sums.get(key), figures)
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
