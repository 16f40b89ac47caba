"""Where sums of rows, or of their parts by one dimension, are read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Subquery, Table, literal, select

from gateway.costs.rollups.daily_sums import SUMMED
from gateway.costs.rollups.parts import DIMENSIONS
from gateway.metering.ledger.schema import rollup_parts, rollups

Rows = Table | Subquery
"""What has the columns of `rollups` that do not tell engines apart."""


@dataclass(frozen=True, slots=True)
class Source:
    table: Rows
    name: ColumnElement[str]
    """The name of the part."""
    where: tuple[ColumnElement[bool], ...] = ()
    sign: int = 1

    def figures(self, names: Sequence[str]) -> Iterator[ColumnElement[Any]]:
        for name in names:
            column = self.table.c[name]
            yield column if self.sign == 1 else (-column).label(name)


class SeveralDimensionsError(ValueError):
    """The rows are to be divided by two dimensions of parts at once."""


def sources(by: Sequence[str], *, daily: bool = False) -> list[Source]:
    """What to sum for rows by `by`: with a dimension of parts, the parts, and what they leave of their rows,
    under the empty name. `daily`: sums of days instead, whose `hour` and `piece` are the day's start. Raises
    SeveralDimensionsError."""
    dimensions = [name for name in by if name in DIMENSIONS]
    rows, parts = (_DAILY[table] if daily else table for table in (rollups, rollup_parts))
    nobody = literal("")
    if not dimensions:
        return [Source(rows, nobody)]
    if len(dimensions) > 1:
        raise SeveralDimensionsError(f"{' and '.join(dimensions)} cannot be combined: choose one of them.")
    of_dimension = (parts.c.dimension == dimensions[0],)
    return [
        Source(rows, nobody),
        Source(parts, parts.c.name, of_dimension),
        Source(parts, nobody, of_dimension, -1),
    ]


def _days(sums: Table) -> Subquery:
    day = sums.c.day
    others = [column for column in sums.columns if column is not day]
    return select(day.label("hour"), day.label("piece"), *others).subquery(str(sums.name))


_DAILY: dict[Table, Rows] = {rows: _days(sums) for rows, sums in SUMMED.items()}
