"""Values of cells, and how they are written: exactly, as text."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gateway.runtime.spreadsheet import harmless
from gateway.units import decimal_text


class Fixed(NamedTuple):
    """The decimal `units` / 10**`places`, exactly."""

    units: int
    places: int

    def __str__(self) -> str:
        return decimal_text(self.units, self.places)


Cell = str | int | Fixed | bool | None
Row = dict[str, Cell]
"""By column; a column that is missing is null."""


@lru_cache(maxsize=8192, typed=True)  # most cells repeat in the next row
def csv_text(cell: Cell) -> str:
    """Null is an empty cell. Text that a spreadsheet would run as a formula is prefixed with an apostrophe:
    names of tenants and adapters cannot start like a formula, but operators' labels (regions, GPU types)
    can."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return harmless(cell)
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return str(cell)
