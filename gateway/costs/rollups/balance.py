"""Checks that the parts of each engine-hour sum to the whole, to the nano-GPU-hour, over all postings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, literal, select, union_all

from gateway.costs.periods import iso, month_of
from gateway.metering.ledger.schema import engine_hours, rollups


@dataclass(frozen=True, slots=True)
class Imbalance:
    hour: int
    engine: str
    gpu_type: str
    parts: int
    """Nano-GPU-hours."""
    total: int

    def __str__(self) -> str:
        return (
            f"{self.engine} ({self.gpu_type}) at {iso(self.hour)}: parts {self.parts:,}, "
            f"whole {self.total:,} nano-GPU-hours"
        )


def imbalances(connection: Connection, month: str, limit: int = 10) -> list[Imbalance]:
    """In the hours of a month, and in the earlier hours it holds corrections for."""
    period = month_of(month)
    unbalanced = list(_of_hours(connection, period.start, period.end, limit))
    query = select(rollups.c.hour).where(rollups.c.posted == month, rollups.c.correction).distinct()
    for hour in sorted(connection.execute(query).scalars()):
        if len(unbalanced) < limit and not period.start <= hour < period.end:
            unbalanced += _of_hours(connection, hour, hour + 1, limit - len(unbalanced))
    return unbalanced


def _of_hours(connection: Connection, start: int, end: int, limit: int) -> Iterator[Imbalance]:
    """Those that begin in [start, end)."""
    parts, wholes = rollups.c, engine_hours.c
    # The month lets SQLite use an index: nothing of an hour is posted before the hour's own month.
    of_parts = [parts.posted >= iso(start)[:7], parts.hour >= start, parts.hour < end]
    both = union_all(
        _side(parts, of_parts, is_whole=False),
        _side(wholes, [wholes.hour >= start, wholes.hour < end], is_whole=True),
    ).subquery()
    key = [both.c[name] for name in ("hour", "engine", "gpu_type", "gpu_count")]
    part, all_of_it = func.sum(both.c.part), func.sum(both.c.whole)
    query = select(*key, part, all_of_it).group_by(*key).having(part != all_of_it).order_by(*key).limit(limit)
    for row in connection.execute(query):
        hour, engine, gpu_type, _, parts_sum, expected = tuple(row)
        yield Imbalance(hour, engine, gpu_type, int(parts_sum), int(expected))


def _side(columns: Any, where: list[ColumnElement[bool]], *, is_whole: bool) -> Any:
    nano = columns.nano_gpu_hours
    amounts = (literal(0), nano) if is_whole else (nano, literal(0))
    key = (columns.hour, columns.engine, columns.gpu_type, columns.gpu_count)
    return select(*key, amounts[0].label("part"), amounts[1].label("whole")).where(*where)
