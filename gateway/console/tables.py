"""Tables: sorted, filtered, paged and exported as the page's URL says. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal
from urllib.parse import urlencode

import orjson

from gateway.runtime.spreadsheet import harmless

PAGE_ROWS: Final = 50
Kind = Literal["text", "number", "money", "time", "bytes", "percent", "seconds", "badge", "code"]


@dataclass(frozen=True, slots=True)
class Cell:
    """What a column shows of a row, where the bare value is not enough."""

    value: Any
    """Sorted by, filtered by and exported."""
    href: str = ""
    tone: str = ""
    """A badge's tone: good, warn, bad, info or empty for neutral."""
    note: str = ""
    """Small text below."""
    text: str = ""
    """Shown instead of the value."""
    document: bool = False
    """The address is a document of its own, with its own style: no page of the console."""
    download: str = ""
    """The address is a file, to be saved under this name."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    """In URLs and exports."""
    title: str
    value: Callable[[Any], Any]
    """What a row has in this column: a bare value or a Cell. Money is a Decimal or its text, times are Unix
    microseconds."""
    kind: Kind = "text"
    help: str = ""
    currency: str = ""
    """Money has its decimal places; empty: two."""

    @property
    def right(self) -> bool:
        return self.kind in {"number", "money", "bytes", "percent", "seconds"}


@dataclass(frozen=True, slots=True)
class Head:
    column: Column
    href: str
    """Sorts by it; again: in the other direction."""
    sorted: Literal["", "ascending", "descending"]


@dataclass(frozen=True, slots=True)
class TableView:
    name: str
    """Prefix of its parameters, if a page has several tables."""
    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    """Those of this page."""
    every: tuple[tuple[Cell, ...], ...]
    """All that match, in order."""
    total: int
    """Rows before filtering."""
    query: str
    """What it is filtered by."""
    keep: tuple[tuple[str, str], ...]
    """The URL's other parameters, which its search form must keep."""
    first: int
    previous: str
    next: str
    """URLs of the pages before and after; empty: there is none."""
    csv: str
    json: str

    @property
    def matching(self) -> int:
        return len(self.every)

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1


def view(  # keyword-only options of one thing
    columns: Sequence[Column],
    rows: Sequence[Any],
    query: Mapping[str, str],
    *,
    path: str,
    sort: str = "",
    name: str = "",
    size: int = PAGE_ROWS,
) -> TableView:
    """`sort`: the column to sort by unless the URL says another; with a `-` in front: largest first. Empty:
    the order of `rows`. `name`: for the second table of a page, whose parameters are then `name.sort` and so
    on."""
    prefix = f"{name}." if name else ""
    order = query.get(f"{prefix}sort", sort)
    words = query.get(f"{prefix}q", "").strip()[:100]
    cells = [tuple(_cell(column.value(row)) for column in columns) for row in rows]
    if words:
        needles = words.lower().split()
        cells = [row for row in cells if _matches(row, needles)]
    by = next((n for n, column in enumerate(columns) if column.name == order.lstrip("-")), None)
    if by is not None:
        known = [row for row in cells if row[by].value is not None]
        unknown = [row for row in cells if row[by].value is None]  # last, whatever the direction
        kind = columns[by].kind
        known.sort(key=lambda row: _order(row[by].value, kind), reverse=order.startswith("-"))
        cells = known + unknown
    pages = max(1, -(-len(cells) // size))
    page = min(max(_number(query.get(f"{prefix}page", "1")), 1), pages)

    def url(**changes: str) -> str:
        given = {k: v for k, v in query.items() if k != "format"}
        given |= {prefix + k: v for k, v in changes.items()}
        return f"{path}?{urlencode({k: v for k, v in given.items() if v})}"

    heads = []
    for column in columns:
        direction: Literal["", "ascending", "descending"] = ""
        if order.lstrip("-") == column.name:
            direction = "descending" if order.startswith("-") else "ascending"
        falling = direction == "ascending" or (not direction and column.right)
        heads.append(Head(column, url(sort=("-" if falling else "") + column.name, page=""), direction))
    own = {f"{prefix}q", f"{prefix}page", "format"}
    return TableView(
        name,
        tuple(heads),
        tuple(cells[(page - 1) * size : page * size]),
        tuple(cells),
        len(rows),
        words,
        tuple((k, v) for k, v in query.items() if k not in own),
        (page - 1) * size + 1 if cells else 0,
        url(page=str(page - 1)) if page > 1 else "",
        url(page=str(page + 1)) if page < pages else "",
        _with_format(url(), "csv", name),
        _with_format(url(), "json", name),
    )


def exported(table: TableView, form: str) -> tuple[bytes, str, str] | None:
    """Every matching row as (body, media type, suffix). None: no such form."""
    form, _, name = form.partition(":")
    if name != table.name:
        return None
    names = [head.column.name for head in table.heads]
    if form == "json":
        data = [dict(zip(names, (cell.value for cell in row), strict=True)) for row in table.every]
        return orjson.dumps({"data": data}, default=str), "application/json", "json"
    if form == "csv":
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([[_plain(cell.value) for cell in row] for row in table.every])
        return file.getvalue().encode(), "text/csv; charset=utf-8", "csv"
    return None


def _with_format(url: str, form: str, name: str) -> str:
    joint = "" if url.endswith("?") else "&"
    return f"{url}{joint}format={form}{':' + name if name else ''}"


def _cell(value: Any) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def _matches(row: tuple[Cell, ...], needles: Sequence[str]) -> bool:
    text = " ".join(f"{cell.value} {cell.text} {cell.note}" for cell in row if cell.value is not None).lower()
    return all(needle in text for needle in needles)


def _order(value: Any, kind: Kind) -> tuple[int, Any]:
    """Numbers before texts; texts without regard to case."""
    if kind == "money":
        return 0, Decimal(str(value))
    if isinstance(value, bool | int | float):
        return 0, value
    return 1, str(value).casefold()


def _plain(value: Any) -> Any:
    return harmless(value) if isinstance(value, str) else value


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1
