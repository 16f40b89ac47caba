"""Sums of roll-up rows by UTC day. A month has a row for each adapter in each engine-hour, and reports seldom
ask for hours or engines: the sums of a day are a tenth as many rows, or fewer.

They are made of the rows and say nothing new. Whoever changes rows marks their days as unsummed, in the same
transaction; reports then read the rows of these days. The roll-up sums a day when it is over. A day within
which a rate changes has rows of several rates, which only the rows tell apart: reports read those, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, func, literal, select

from gateway.costs.rollups.parts import DIMENSIONS
from gateway.costs.rollups.posted_rows import lock_postings, posted_since
from gateway.costs.rollups.posting import FIGURES
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import daily_parts, daily_rollups, rollup_parts, rollups, unsummed_days
from gateway.units import DAY

SUMMED: dict[Table, Table] = {rollups: daily_rollups, rollup_parts: daily_parts}
"""Rows → the sums of them."""
_FACTS = {
    sums: tuple(str(c.name) for c in sums.columns if c.name not in {"posted", "day", *FIGURES})
    for sums in SUMMED.values()
}
_LARGEST = (1 << 63) - 1


def mark_unsummed(connection: Connection, hours: Iterable[int]) -> None:
    """In a write transaction that changes rows of these hours, or adds or removes some."""
    days = sorted({hour - hour % DAY for hour in hours})
    if days:
        put = insert(connection, unsummed_days).on_conflict_do_nothing()
        connection.execute(put, [{"day": day} for day in days])


def mark_unsummed_month(connection: Connection, month: str) -> None:
    """All days of the rows that are posted to a month."""
    hours = select(rollups.c.hour).where(rollups.c.posted == month).distinct()
    mark_unsummed(connection, connection.execute(hours).scalars())


def read_unsummed(connection: Connection) -> list[int]:
    return list(connection.execute(select(unsummed_days.c.day).order_by(unsummed_days.c.day)).scalars())


def sum_days(ledger: Ledger, now: int, *, seconds: float) -> None:
    """Sum the days that are over, the latest first, because reports ask for them most. Stops after `seconds`.
    Raises LedgerUnavailableError."""
    until = monotonic() + seconds
    with ledger.read() as connection:
        days = [day for day in read_unsummed(connection) if day + DAY <= now]
    for day in reversed(days):
        with ledger.write() as connection:
            _sum_day(connection, day)
        if monotonic() >= until:
            return


def _sum_day(connection: Connection, day: int) -> None:
    lock_postings(connection)  # nobody changes rows and marks the day until the mark is removed
    names = posted_since(connection, day)
    if not _summable(connection, day, names):
        return
    for rows, sums in SUMMED.items():
        connection.execute(delete(sums).where(sums.c.posted.in_(names), sums.c.day == day))
        facts = [rows.c[name] for name in _FACTS[sums]]
        figures = [func.sum(rows.c[name]) for name in FIGURES]
        query = select(rows.c.posted, literal(day), *facts, *figures).where(*_within(rows, names, day))
        columns = ["posted", "day", *_FACTS[sums], *FIGURES]
        connection.execute(sums.insert().from_select(columns, query.group_by(rows.c.posted, *facts)))
    connection.execute(delete(unsummed_days).where(unsummed_days.c.day == day))


def _within(rows: Table, names: Sequence[str], day: int) -> list[ColumnElement[bool]]:
    at_index = [] if rows is rollups else [rows.c.dimension.in_(DIMENSIONS)]
    return [rows.c.posted.in_(names), *at_index, rows.c.hour >= day, rows.c.hour < day + DAY]


def _summable(connection: Connection, day: int, names: Sequence[str]) -> bool:
    """Whether no sum can exceed 64 bits. Bounds on records leave room for ninety rows of the largest."""
    largest = [func.max(func.abs(rollups.c[name])) for name in FIGURES]
    query = select(func.count(), *largest).where(*_within(rollups, names, day))
    count, *figures = connection.execute(query).one()
    return bool(count * max(figure or 0 for figure in figures) <= _LARGEST)


def differing_sums(connection: Connection, month: str) -> int:
    """How many of the sums posted to a month are not those of its rows. Sums of unsummed days do not
    count."""
    return sum(_differing(connection, month, rows, sums) for rows, sums in SUMMED.items())


def _differing(connection: Connection, month: str, rows: Table, sums: Table) -> int:
    unsummed = select(unsummed_days.c.day)
    day = (rows.c.hour - rows.c.hour % DAY).label("day")
    facts = [rows.c[name] for name in _FACTS[sums]]
    figures = [func.sum(rows.c[name]).label(name) for name in FIGURES]
    right: Any = select(day, *facts, *figures).where(rows.c.posted == month, day.not_in(unsummed))
    right = right.group_by(day, *facts)
    stored = select(*(sums.c[name] for name in ("day", *_FACTS[sums], *FIGURES)))
    stored = stored.where(sums.c.posted == month, sums.c.day.not_in(unsummed))
    counts = (
        connection.execute(select(func.count()).select_from(first.except_(second).subquery())).scalar_one()
        for first, second in ((stored, right), (right, stored))
    )
    return sum(map(int, counts))
