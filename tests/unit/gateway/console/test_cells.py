"""Cells as HTML: what others wrote stays text, whatever the kind."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.console.cells import NOTHING, cell, rows
from gateway.console.tables import Cell, Column, Head, Kind

NOW = 1_795_000_000_000_000
EVIL = '"><script>alert(1)</script>'


def reaches(href: str) -> bool:
    return href.startswith("/console/")


def test_nothing_that_somebody_wrote_becomes_markup():
    kinds: tuple[Kind, ...] = ("text", "badge", "code")
    for kind in kinds:
        for shown in (Cell(EVIL), Cell(1, text=EVIL), Cell("a", note=EVIL), Cell("a", tone=EVIL)):
            assert "<script" not in cell(kind, shown, reaches, NOW)
        assert "<script" not in cell(kind, Cell("a", href="/console/" + EVIL), reaches, NOW)


@pytest.mark.parametrize(
    ("kind", "shown", "html"),
    [
        ("text", Cell("acme", href="/console/tenants/acme"), '<a href="/console/tenants/acme">acme</a>'),
        ("text", Cell("acme", href="/elsewhere"), "acme"),
        ("text", Cell(None), str(NOTHING)),
        ("text", Cell(""), str(NOTHING)),
        ("number", Cell(0), "0"),
        ("number", Cell(12_345, text="12 k"), "12 k"),
        ("money", Cell("12.5"), "12.50"),
        ("bytes", Cell(2048), "2 KiB"),
        ("percent", Cell(0.25), "25.0 %"),
        ("seconds", Cell(0.5), "500 ms"),
        ("text", Cell("a", href="/console/a", document=True), '<a href="/console/a" hx-boost="false">a</a>'),
        (
            "text",
            Cell("a", href="/console/a", text="Save", download='a"b'),
            '<a href="/console/a" hx-boost="false" download="a&#34;b">Save</a>',
        ),
        ("badge", Cell("up", tone="good"), '<span class="badge good">up</span>'),
        ("code", Cell("ab12"), "<code>ab12</code>"),
        ("text", Cell("x", note="see `florin`"), 'x<small class="faint">see <code>florin</code></small>'),
    ],
)
def test_a_kind_says_how_a_value_is_written(kind: Kind, shown: Cell, html: str):
    assert cell(kind, shown, reaches, NOW) == html


def test_times_are_relative_and_exact():
    html = cell("time", Cell(NOW - 120_000_000), reaches, NOW)
    assert '<span class="relative">2 min ago</span>' in html
    assert 'datetime="2026-11-18T' in html
    assert cell("time", Cell(None), reaches, NOW) == NOTHING


def test_the_first_cell_heads_its_row_and_figures_stand_right():
    def head(kind: Kind) -> Head:
        unused: Any = None
        return Head(Column("c", "C", unused, kind), "", "")

    html = rows([head("text"), head("number")], [(Cell("a"), Cell(1))], reaches, NOW)
    assert html == '<tr><th scope="row">a</th><td class="right">1</td></tr>'
    assert rows([head("text")], [], reaches, NOW) == ""
