"""Where sums of rows, or of their parts by one dimension, are read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, literal

from gateway.costs.rollups.parts import DIMENSIONS
from gateway.metering.ledger.schema import rollup_parts, rollups


@dataclass(frozen=True, slots=True)
class Source:
    table: Table
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


def sources(by: Sequence[str]) -> list[Source]:
    """What to sum for rows by `by`: with a dimension of parts, the parts, and what they leave of their rows,
    under the empty name. Raises SeveralDimensionsError."""
    dimensions = [name for name in by if name in DIMENSIONS]
    nobody = literal("")
    if not dimensions:
        return [Source(rollups, nobody)]
    if len(dimensions) > 1:
        raise SeveralDimensionsError(f"{' and '.join(dimensions)} cannot be combined: choose one of them.")
    of_dimension = (rollup_parts.c.dimension == dimensions[0],)
    return [
        Source(rollups, nobody),
        Source(rollup_parts, rollup_parts.c.name, of_dimension),
        Source(rollup_parts, nobody, of_dimension, -1),
    ]
