"""The rows of a table as HTML. Pure.

Not in a template: a table has hundreds of cells, and calling macros for one takes longer than all of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from markupsafe import Markup, escape

from gateway.console import formats
from gateway.console.tables import Cell, Head, Kind

NOTHING: Final = Markup('<span class="faint">–</span>')  # noqa: RUF001  # a dash, as in tables
_FORMATS: Final[dict[str, Callable[[Any], str]]] = {
    "number": formats.number,
    "bytes": formats.size,
    "percent": formats.percent,
    "seconds": formats.seconds,
    "money": formats.amount_of,
}


def rows(
    heads: Sequence[Head], shown: Sequence[Sequence[Cell]], reaches: Callable[[str], bool], now: int
) -> Markup:
    """The first cell of each row is its heading. `reaches`: whether the visitor has the page of an address.
    `now`: Unix microseconds."""
    columns = [head.column for head in heads]
    opens = ['<td class="right">' if head.column.right else "<td>" for head in heads]
    lines = []
    for row in shown:
        first, *rest = [
            cell(column.kind, content, reaches, now, column.currency)
            for column, content in zip(columns, row, strict=True)
        ]
        others = "".join(f"{start}{html}</td>" for start, html in zip(opens[1:], rest, strict=True))
        lines.append(f'<tr><th scope="row">{first}</th>{others}</tr>')
    return Markup("".join(lines))  # noqa: S704  # made of what `cell` has escaped


def cell(kind: Kind, shown: Cell, reaches: Callable[[str], bool], now: int, currency: str = "") -> Markup:
    value = shown.text or shown.value
    if value is None or value == "":
        html = NOTHING
    elif kind == "time" and not shown.text:
        html = time(shown.value, now)
    else:
        text = value if shown.text or kind not in _FORMATS else _FORMATS[kind](value)
        if kind == "money" and currency and not shown.text:
            text = formats.amount_of(value, currency)
        html = _linked(kind, shown, escape(text), reaches)
    if shown.note:
        html += Markup('<small class="faint">{}</small>').format(prose(shown.note))
    return html


def _linked(kind: Kind, shown: Cell, text: Markup, reaches: Callable[[str], bool]) -> Markup:
    if kind == "badge":
        return Markup('<span class="badge {}">{}</span>').format(shown.tone, text)
    if shown.href and reaches(shown.href):
        plain = Markup(' hx-boost="false"') if shown.document or shown.download else ""
        saved = Markup(' download="{}"').format(shown.download) if shown.download else ""
        return Markup('<a href="{}"{}{}>{}</a>').format(shown.href, plain, saved, text)
    return Markup("<code>{}</code>").format(text) if kind == "code" else text


def time(moment: int | None, now: int) -> Markup:
    """Unix microseconds: relative, and exact when the visitor asks for exact times."""
    if not moment:
        return NOTHING
    exact = formats.exact(moment)
    return Markup(
        '<time datetime="{}" title="{}"><span class="relative">{}</span><span class="exact">{}</span></time>'
    ).format(formats.iso(moment), exact, formats.relative(moment, now), exact)


def prose(text: str) -> Markup:
    """A sentence of the API's, in which `names` stand between backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one backtick is only that
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if n % 2 else escape(part) for n, part in enumerate(parts)
    )
