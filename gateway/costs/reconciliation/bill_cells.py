"""The cells of a CSV file, by our fields: pure."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import orjson

LONGEST = 300
"""Characters of a text that is kept."""


class BillError(ValueError):
    """The file as a whole is no bill that can be read."""


def rows_of(text: Iterable[str]) -> Iterator[tuple[int, list[str], str]]:
    """(line number, cells, what is wrong) of every line that is not empty."""
    reader = csv.reader(text, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, [], f"It is not CSV: {error}."
            continue
        except UnicodeDecodeError as error:
            raise BillError(f"The file is not UTF-8 text (near line {number}).") from error
        if any("\0" in cell for cell in cells):
            yield number, cells, "It holds a NUL character."
        elif any(cells):
            yield number, cells, ""


def column_of(source: str, columns: Mapping[str, int]) -> tuple[str, str]:
    """(column, key in its JSON, or empty). A column may have a dot in its name."""
    if source in columns:
        return source, ""
    column, _, key = source.partition(".")
    return column, key


@dataclass(frozen=True, slots=True)
class Cells:
    """One row, by our fields."""

    cells: Sequence[str]
    columns: Mapping[str, int]
    sources: Mapping[str, tuple[str, ...]]
    renames: Mapping[tuple[str, str], str]

    def get(self, name: str) -> str:
        """The first source that says something, in our words; empty: none does."""
        for source in self.sources.get(name, ()):
            if value := self.raw(source):
                return self.renames.get((name, value), value)
        return self.renames.get((name, ""), "")

    def raw(self, source: str) -> str:
        column, key = column_of(source, self.columns)
        index = self.columns.get(column)
        if index is None:
            return ""
        value = self.cells[index].strip()
        if value.upper() == "NULL":  # as some providers write it
            return ""
        return _key_of(value, key) if key else value

    def need(self, name: str) -> str:
        value = self.get(name)
        if not value:
            raise BillError(f"{' or '.join(self.sources[name])} is empty.")
        return value

    def name(self, name: str) -> str:
        value = self.get(name)
        if len(value) > LONGEST:
            raise BillError(f"{name} has more than {LONGEST} characters.")
        return value


def _key_of(text: str, key: str) -> str:
    """What a JSON object says under a key; FOCUS keeps tags and SKU details so."""
    try:
        found = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        return ""
    value = found.get(key) if isinstance(found, dict) else None
    return "" if value is None or isinstance(value, dict | list) else str(value)


def decimal_in(name: str, value: str) -> Decimal:
    try:
        number = Decimal(value)
    except InvalidOperation:
        number = Decimal("NaN")
    exponent = number.as_tuple().exponent
    if not number.is_finite() or len(value) > 60 or not isinstance(exponent, int) or abs(exponent) > 40:
        raise BillError(f"{name}: {value[:40]!r} is not a decimal number.")
    return number
