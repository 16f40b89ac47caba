"""Reads the cells of a CSV file by Florin's field names. Pure."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import chain

import orjson

LONGEST = 300
"""Maximum characters of a stored text."""


class BillError(ValueError):
    """The file as a whole cannot be read as a bill."""


SEPARATORS = (",", ";", "\t")
_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?", re.ASCII)


def rows_of(text: Iterable[str]) -> Iterator[tuple[int, list[str], str]]:
    """(line number, cells, error) of every non-empty line. The header tells the separator: a comma, a
    semicolon or a tab."""
    lines = iter(text)
    try:
        first = next(lines, "")
    except UnicodeDecodeError as error:
        raise BillError("The file is not UTF-8 text (near line 1).") from error
    separator = max(SEPARATORS, key=first.count)
    reader = csv.reader(chain([first], lines), strict=True, delimiter=separator)
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
    decimal_comma: bool = False

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

    def number(self, name: str, value: str) -> Decimal:
        """Raises BillError."""
        return decimal_in(name, value, comma=self.decimal_comma)

    def name(self, name: str) -> str:
        value = self.get(name)
        if len(value) > LONGEST:
            raise BillError(f"{name} has more than {LONGEST} characters.")
        return value


def _key_of(text: str, key: str) -> str:
    """The value of a key in a JSON object, as FOCUS stores tags and SKU details."""
    try:
        content = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        return ""
    value = content.get(key) if isinstance(content, dict) else None
    return "" if value is None or isinstance(value, dict | list) else str(value)


def decimal_in(name: str, value: str, *, comma: bool = False) -> Decimal:
    """`comma`: `1.234,56` is 1234.56. Otherwise a comma is refused: 1,234 may be either. Raises BillError."""
    if comma:
        if not _COMMA.fullmatch(value):
            raise BillError(f"{name}: {value[:40]!r} is not a decimal number with a comma, like 1234,56.")
        value = value.replace(".", "").replace(",", ".")
    elif "," in value:
        raise BillError(
            f"{name}: {value[:40]!r} has a comma. If it is the decimal separator, import with "
            "--decimal comma (API: decimal=comma); otherwise remove the thousands separators."
        )
    try:
        number = Decimal(value)
    except InvalidOperation:
        number = Decimal("NaN")
    exponent = number.as_tuple().exponent
    if not number.is_finite() or len(value) > 60 or not isinstance(exponent, int) or abs(exponent) > 40:
        raise BillError(f"{name}: {value[:40]!r} is not a decimal number.")
    return number
