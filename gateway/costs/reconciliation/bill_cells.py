"""Reads the cells of a CSV file by Florin's field names. Pure."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import orjson

LONGEST = 300
"""Maximum characters of a stored text."""


class BillError(ValueError):
    """The file as a whole cannot be read as a bill."""


def rows_of(text: Iterable[str]) -> Iterator[tuple[int, list[str], str]]:
    """(line number, cells, error) of every non-empty line."""
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
    """(column, key in its JSON or empty). A column name may contain a dot."""
    if source in columns:
        return source, ""
    column, _, key = source.partition(".")
    return column, key


@dataclass(frozen=True, slots=True)
class Cells:
    """One row, by Florin's field names."""

    cells: Sequence[str]
    columns: Mapping[str, int]
    sources: Mapping[str, tuple[str, ...]]
    renames: Mapping[tuple[str, str], str]

    def get(self, name: str) -> str:
        """The first non-empty source, renamed; empty if there is none."""
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
    """The value of a key in a JSON object, as FOCUS stores tags and SKU details."""
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
