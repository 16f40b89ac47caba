"""Which records and roll-up rows a period covers, and in which order.

A period covers the records that ended in its month and arrived before its cutoff, and records of earlier
months that arrived between the previous cutoff and its own. Each record is covered by exactly one period. The
order is (ended, id), so late records come first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Row, ScalarSelect, select, tuple_, type_coerce
from sqlalchemy.types import NullType

from gateway.costs.merkle import RECORD_FIELDS, WITHHELD_FIELDS, without_absent
from gateway.costs.periods import month_of
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.record_reader import RecordReader, Values
from gateway.metering.ledger.schema import (
    periods,
    rollup_parts,
    rollups,
    usage_records,
    usage_tenants,
)
from gateway.units import HOUR

BEFORE_ALL = -1
"""The cutoff before the first period."""
_PAGE = 10_000
_FIELDS = (*RECORD_FIELDS, *WITHHELD_FIELDS)
_ROWS = tuple(
    (table, order, tuple(sorted(str(c.name) for c in table.columns if c.name not in {"id", "posted"})))
    for table, order in (
        (rollups, (rollups.c.hour, rollups.c.id)),
        (rollup_parts, (rollup_parts.c.dimension, rollup_parts.c.hour, rollup_parts.c.id)),
    )
)
"""Tables of roll-ups, their order, and what is hashed of their rows."""

Record = dict[str, Any]
"""In the order of RECORD_FIELDS, without those that say nothing, and then WITHHELD_FIELDS."""


@dataclass(frozen=True, slots=True)
class Coverage:
    month: str
    first_batch: int
    """Exclusive."""
    cutoff_batch: int
    """Inclusive."""


def cover_of(connection: Connection, month: str) -> Coverage | None:
    """The coverage of a month that is closed or being closed; None if it is open."""
    query = select(periods.c.month, periods.c.first_batch, periods.c.cutoff_batch).where(
        periods.c.month == month
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else Coverage(*row)


def late_hours(connection: Connection, month: str) -> list[int]:
    """Hours of earlier months that this month has corrections for. Every late record is in one of them, since
    it changed the counts of its hour."""
    table = rollups.c
    query = select(table.hour).where(table.posted == month, table.hour < month_of(month).start).distinct()
    return sorted(connection.execute(query).scalars())


def records(ledger: Ledger, cover: Coverage) -> Iterator[Record]:
    """All covered records, in order. Reads page by page to keep transactions short;
    covered records never change. Raises LedgerUnavailableError."""
    reader = RecordReader(_FIELDS)
    after, last = None, None
    while True:
        for last in _page(ledger, cover, reader, None, after, _PAGE):
            yield last
        if last is None or (reached := (last["ended"], last["id"])) == after:
            return
        after = reached


def record_page(
    ledger: Ledger, cover: Coverage, *, tenant: str | None, after: tuple[int, str] | None, limit: int
) -> list[Record]:
    """The first `limit` records after the position `after`, in order. Raises LedgerUnavailableError."""
    return list(_page(ledger, cover, RecordReader(_FIELDS), tenant, after, limit))


def _page(
    ledger: Ledger,
    cover: Coverage,
    reader: RecordReader,
    tenant: str | None,
    after: tuple[int, str] | None,
    limit: int,
) -> Iterator[Record]:
    """They are made one by one: a dictionary each, of thousands, would keep the garbage collector busy."""
    period, table = month_of(cover.month), usage_records.c
    rows: list[Sequence[Any]] = []
    with ledger.read() as connection:
        late = [(hour, hour + HOUR, cover.first_batch) for hour in late_hours(connection, cover.month)]
        for start, end, first_batch in [*late, (period.start, period.end, BEFORE_ALL - 1)]:
            if after is not None and after[0] >= end:
                continue
            # One lower bound only: SQLite uses the first it is given, and would reread all earlier pages.
            begin = start if after is None else max(start, after[0])
            where = [*_within(begin, end, first_batch, cover.cutoff_batch), *_after(after)]
            if tenant is not None:
                where.append(table.tenant == _number_of(tenant))
            query = select(*reader.columns).where(*where).order_by(table.ended, table.id)
            rows += connection.execute(query.limit(limit - len(rows))).all()
            if len(rows) == limit:
                break
        return map(_record, reader.records(connection, rows))


def _within(start: int, end: int, first_batch: int, cutoff_batch: int) -> list[ColumnElement[bool]]:
    table = usage_records.c
    return [
        table.ended >= start,
        table.ended < end,
        table.batch > first_batch,
        table.batch <= cutoff_batch,
    ]


def _after(position: tuple[int, str] | None) -> list[ColumnElement[bool]]:
    if position is None:
        return []
    table = usage_records.c
    return [tuple_(table.ended, table.id) > position]


def _number_of(tenant: str) -> ScalarSelect[int]:
    return select(usage_tenants.c.id).where(usage_tenants.c.tenant == tenant).scalar_subquery()


def _record(values: Values) -> Record:
    record = dict(zip(_FIELDS, values, strict=True))
    record["billable"] = bool(record["billable"])
    return without_absent(record)


def rollups_digest(connection: Connection, month: str) -> str:
    """SHA-256 over the rows posted to a month, and then over their parts, which months closed before there
    were parts do not have; each in their order: the row's canonical JSON without its id (its names
    are in order already; its task only if it says something), and a newline."""
    hashed = hashlib.sha256()
    for table, order, names in _ROWS:
        columns = (type_coerce(table.c[n], NullType) if n == "correction" else table.c[n] for n in names)
        query = select(*columns).where(table.c.posted == month).order_by(*order)
        for page in connection.execute(query.execution_options(yield_per=_PAGE)).partitions():
            hashed.update(b"".join(_hashed(names, row) for row in page))
    return hashed.hexdigest()


def _hashed(names: Sequence[str], row: Row[Any]) -> bytes:
    content = dict(zip(names, row, strict=True))
    content["correction"] = bool(content["correction"])
    if not content["task"]:  # as rows were before there were tasks
        del content["task"]
    return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
