"""The statement's page: what it says, that it says it whole, and that nothing in it can do harm."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gateway.costs.closing.closing import close
from gateway.costs.periods import month_of
from gateway.costs.statement import plots
from gateway.costs.statement.items import Item
from gateway.costs.statement.page import fitting, render, statement_page
from gateway.costs.statement.statement_figures import read_statement
from gateway.units import DAY
from tests.unit.gateway.costs.export.month import MONTH, fill

NOW = month_of(MONTH).end + DAY
VOID = {"meta", "br", "line", "rect"}


@pytest.fixture
def ledger(ledger_with):
    return ledger_with()


@pytest.fixture
def filled(ledger):
    fill(ledger)
    return ledger


class Page(HTMLParser):
    """Text, tables by caption, and every attribute. Fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.tables: dict[str, list[list[str]]] = {}
        self._caption = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.tables.setdefault(self._caption, []).append([])
        if tag in {"td", "th"}:
            self.tables[self._caption][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text += data
        if "caption" in self.open and "span" not in self.open and data.strip():
            self._caption = data.strip()
        elif {"td", "th"} & set(self.open) and "table" in self.open:
            self.tables[self._caption][-1][-1] += data.strip()


def page(ledger, tenant="acme", *, known=False) -> Page:
    text = statement_page(ledger, tenant, MONTH, issuer="Nordlicht & Söhne", now=NOW, known=known)
    assert text is not None
    return Page(text)


def cents(text: str) -> int:
    return int(re.sub(r"[,.]", "", text).replace("\N{MINUS SIGN}", "-"))


def test_the_amounts_of_the_table_sum_to_the_total(filled):
    close(filled, MONTH, now=NOW, by="test", policy="proportional")
    table = page(filled).tables["Usage"]
    bodies = [line for line in table if "@v" in line[0]]
    lines = {line[0]: line[-1] for line in table}
    assert sum(cents(line[-1]) for line in bodies) == cents(lines["Usage"])
    share = cents(lines["Share of unused time (proportional)"])
    assert share > 0
    corrections = cents(lines["Corrections of earlier months"])
    assert cents(lines["Usage"]) + share + corrections == cents(lines["Total"])
    assert {line[0] for line in bodies} == {"support@v3", "support@v4"}


def test_a_closed_month_names_its_roots_and_is_not_preliminary(filled):
    close(filled, MONTH, now=NOW, by="test")
    with filled.read() as connection:
        statement = read_statement(connection, "acme", MONTH, known=False)
    found = page(filled)
    assert statement.period_hash.root in found.text
    assert statement.period_hash.tenant_root in found.text
    assert "reliminary" not in found.text
    assert "PRELIMINARY" not in found.text
    assert "Unused GPU time is not charged to you." in found.text


def test_an_open_month_is_preliminary(filled):
    found = page(filled)
    assert "PRELIMINARY" in found.text
    assert "Closed and verifiable" not in found.text
    assert "Nordlicht & Söhne" in found.text


def test_other_tenants_are_nowhere(filled):
    assert "No usage." in page(filled, "nobody", known=True).text
    found = page(filled, "corgi")
    assert "acme" not in found.text
    assert "bolt" not in found.text


def test_it_needs_nothing_from_elsewhere_and_runs_nothing(filled):
    found = page(filled)
    assert not {"script", "link", "img", "iframe", "object", "form", "a"} & set(found.tags)
    names = {name for name, _ in found.attributes}
    assert not {"src", "href", "action"} & names
    assert not any(name.startswith("on") for name in names)
    text = statement_page(filled, "acme", MONTH, issuer="x", now=NOW, known=False)
    assert "://" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_whatever_names_say_is_text(filled):
    evil = '"><script>alert(1)</script>'
    with filled.read() as connection:
        statement = read_statement(connection, "acme", MONTH, known=False)
    items = tuple(replace(item, name=evil, gpu=evil) for item in statement.usage)
    prices = tuple(replace(price, gpu_type=evil) for price in statement.unit_prices)
    days = {evil: next(iter(statement.days.values()))}
    hostile = replace(
        statement,
        tenant=evil,
        month=MONTH,
        currency=evil,
        usage=items,
        unit_prices=prices,
        days=days,
        policy=evil,
    )
    text = render(hostile, issuer=evil, now=NOW)
    assert "<script" not in text
    assert evil in Page(text).text


def item(name: str, cents: int) -> Item:
    return Item(name, "H100", 1, 2, 3, 4, cents)


def test_more_lines_than_fit_become_one_that_sums_them():
    items = [item(f"a{n:02d}", n) for n in range(40)]
    shown = fitting(items, 11)
    assert len(shown) == 11
    assert shown[-1].name == "30 more"
    assert [i.name for i in shown[:-1]] == [f"a{n}" for n in range(30, 40)]
    for field in ("requests", "input_tokens", "output_tokens", "cents"):
        assert sum(getattr(i, field) for i in shown) == sum(getattr(i, field) for i in items)
    assert fitting(items[:11], 11) == items[:11]


class TestPlots:
    def test_the_five_largest_and_the_rest(self):
        found = plots.top({f"a{n}": (n, 1) for n in range(8)})
        assert [one.name for one in found] == ["a7", "a6", "a5", "a4", "a3", "others"]
        assert found[-1].values == (3, 3)

    def test_columns_stand_on_each_other_and_reach_the_day_s_sum(self):
        series = plots.top({"a": (30, 0), "b": (20, 10)})
        svg = str(plots.days(series, "t"))
        boxes = [
            tuple(map(float, m))
            for m in re.findall(r'rect x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', svg)
        ]
        first = [box for box in boxes if box[0] == boxes[0][0]]
        (_, y1, h1), (_, y2, h2) = first
        assert y2 + h2 == pytest.approx(y1, abs=0.02)
        assert h1 / h2 == pytest.approx(1.5, abs=0.01)
