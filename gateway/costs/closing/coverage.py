"""Which records a period covers, and in which order; which roll-up rows stand in its books.

A period covers the records that ended in its month and came before its cutoff, and those of earlier months
that came between the cutoff before and its own. Each record is covered by one period. In order of
(ended, id): the late ones first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, select, tuple_

from gateway.costs.periods import HOUR, month
from gateway.costs.proofs.merkle import RECORD_FIELDS, canonical
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import periods, rollups, usage_records

BEFORE_ALL = -1
"""Cutoff before the first period's: records from before batches were counted have batch 0."""
_PAGE = 10_000
_SORTED_FIELDS = tuple(sorted(RECORD_FIELDS))
_ROW = tuple(sorted(str(c.name) for c in rollups.columns if c.name not in {"id", "posted"}))

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Coverage:
    month: str
    first_batch: int
    """Not included."""
    cutoff_batch: int
    """Included."""


def cover_of(connection: Connection, of: str) -> Coverage | None:
    """Of a month that is closed or being closed."""
    query = select(periods.c.month, periods.c.first_batch, periods.c.cutoff_batch).where(
        periods.c.month == of
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else Coverage(*row)


def late_hours(connection: Connection, of: str) -> list[int]:
    """Hours of earlier months to which the books of this one hold corrections. A record that came late is in
    one of them: it changed its hour's counts."""
    table = rollups.c
    query = select(table.hour).where(table.posted == of, table.hour < month(of).start).distinct()
    return sorted(connection.execute(query).scalars())


def records(ledger: Ledger, cover: Coverage, *, tenant: str | None = None) -> Iterator[Record]:
    """All, in order, each with RECORD_FIELDS. Reads page by page, so that no transaction lasts long: what is
    covered does not change any more. Raises LedgerUnavailableError."""
    after: tuple[int, str] | None = None
    while page := record_page(ledger, cover, tenant=tenant, after=after, limit=_PAGE):
        yield from page
        after = page[-1]["ended"], page[-1]["id"]


def record_page(
    ledger: Ledger, cover: Coverage, *, tenant: str | None, after: tuple[int, str] | None, limit: int
) -> list[Record]:
    """The first `limit` of those after `after`, in order. Raises LedgerUnavailableError."""
    whole = month(cover.month)
    page: list[Record] = []
    with ledger.read() as connection:
        late = [(hour, hour + HOUR, cover.first_batch) for hour in late_hours(connection, cover.month)]
        for start, end, first_batch in [*late, (whole.start, whole.end, BEFORE_ALL - 1)]:
            if after is not None and after[0] >= end:
                continue
            # One lower bound only: SQLite enters its index at the first that it is told, and would read all
            # pages before this one again.
            begin = start if after is None else max(start, after[0])
            where = [*_within(begin, end, first_batch, cover.cutoff_batch), *_after(after)]
            if tenant is not None:
                where.append(usage_records.c.tenant == tenant)
            page += _page(connection, where, limit - len(page))
            if len(page) == limit:
                break
    return page


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


def _page(connection: Connection, where: list[ColumnElement[bool]], limit: int) -> list[Record]:
    table = usage_records.c
    columns = (table[name] for name in _SORTED_FIELDS)
    query = select(*columns).where(and_(*where)).order_by(table.ended, table.id).limit(limit)
    return [dict(zip(_SORTED_FIELDS, row, strict=True)) for row in connection.execute(query)]


def rollups_digest(connection: Connection, of: str) -> str:
    """SHA-256 over the rows that stand in a month's books, in order of (hour, id): each row's canonical JSON
    without its id, and a newline."""
    table = rollups.c
    query = select(*(table[name] for name in _ROW)).where(table.posted == of).order_by(table.hour, table.id)
    made = hashlib.sha256()
    for row in connection.execute(query.execution_options(yield_per=_PAGE)):
        made.update(canonical(dict(zip(_ROW, row, strict=True))) + b"\n")
    return made.hexdigest()
