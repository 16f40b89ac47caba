"""A statement divided by whose requests they were: the lines sum to its amount, to the cent, in every format."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest

from gateway.costs.closing.closing import GRACE, close
from gateway.costs.periods import month_of
from gateway.costs.rollups.parts import DIMENSIONS
from gateway.costs.rollups.rollup import roll
from gateway.costs.statement.page import statement_csv, statement_json, statement_page
from gateway.units import HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.month import NOVEMBER, OCTOBER, span
from tests.unit.gateway.costs.rollups.test_parts import labelled
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.statement.test_page import Page, cents
from tests.unit.gateway.metering.make import record

NOW = month_of("2026-11").end + GRACE
COUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens")


def fill_ledger(ledger):
    """October is closed, November is open and has a correction of it."""
    price(ledger, "H100", "2.49")
    price(ledger, "L40", "0.7")
    for seed, start in enumerate((OCTOBER, NOVEMBER)):
        ledger.insert(labelled(seed, start))
        span(ledger, start)
    roll(ledger, NOW)
    close(ledger, "2026-10", now=NOW, by="test", policy="proportional")
    ledger.insert([
        record("late", tenant="acme", engine="a", gpu_type="H100", gpu_count=2, dispatched=OCTOBER + 5,
               ended=OCTOBER + HOUR + 17, completion_tokens=7000, tag="late")
    ])  # fmt: skip  # one argument after the other says no more
    roll(ledger, NOW)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def read(ledger, by, of="2026-11", make=statement_json, **more):
    return make(ledger, "acme", of, issuer="x", now=NOW, known=True, by=by, **more)


def assert_adds_up(document):
    division = document["division"]
    rest = division["unused_time_cents"] + division["other_cents"]
    assert sum(row["amount_cents"] for row in division["rows"]) + rest == document["amount_cents"]
    for name in COUNTS:
        assert sum(row[name] for row in division["rows"]) == sum(row[name] for row in document["usage"])


def sold(ledger):
    sell(ledger, "acme", "2026-11", free_input=3, minimum_micros=9_000_000)


@pytest.mark.parametrize("by", DIMENSIONS)
@pytest.mark.parametrize("of", ["2026-10", "2026-11"])
def test_the_parts_sum_to_the_amount(ledger, by, of):
    """A closed month with a share of unused time, and an open one with a correction."""
    document = read(ledger, by, of)
    assert_adds_up(document)
    division = document["division"]
    assert division["by"] == by
    assert (division["unused_time_cents"] > 0) == (of == "2026-10")
    corrected = sum(row["amount_cents"] for row in document["corrections"])
    assert division["other_cents"] == corrected
    assert bool(corrected) == (of == "2026-11")
    assert "division" not in read(ledger, None, of)


@pytest.mark.parametrize("by", DIMENSIONS)
def test_with_a_rate_card_too(ledger, by):
    sold(ledger)
    document = read(ledger, by)
    assert document["basis"] == "rate_card"
    assert_adds_up(document)
    assert document["division"]["other_cents"] > 0, "the minimum"
    assert document["division"]["unused_time_cents"] == 0
    assert len({row["amount_cents"] for row in document["division"]["rows"]}) > 1


@pytest.mark.parametrize("priced", [False, True])
@pytest.mark.parametrize("by", [None, "tag"])
@pytest.mark.parametrize("of", ["2026-10", "2026-11"])
def test_the_amounts_of_the_table_sum_to_the_statement(ledger, priced, by, of):
    if priced:
        sold(ledger)
    document = read(ledger, by, of)
    lines = list(csv.DictReader(io.StringIO(read(ledger, by, of, statement_csv).decode())))
    assert sum(Decimal(line["amount"]) for line in lines) * 100 == document["amount_cents"]
    assert {line["statement"] for line in lines} == {f"{of}/acme"}
    assert {line["state"] for line in lines} == {document["state"]}


def test_the_page_has_the_parts_on_a_sheet_of_their_own(ledger):
    document = read(ledger, "key", labels={"key-1": "<b>search</b>"})
    text = read(ledger, "key", make=statement_page, labels={"key-1": "<b>search</b>"})
    assert "<b>search" not in text, "escaped"
    table = Page(text).tables["Amount by API key"]
    amounts = [cents(line[-1]) for line in table[1:]]
    assert sum(amounts[:-1]) == amounts[-1] == document["amount_cents"]
    assert "Amount by API key" not in Page(read(ledger, None, make=statement_page)).tables


def test_names_that_a_spreadsheet_would_run_are_text(ledger):
    ledger.insert([
        record("formula", tenant="acme", engine="a", gpu_type="H100", gpu_count=2, dispatched=NOVEMBER,
               ended=NOVEMBER + 9, tag="=HYPERLINK(1)")
    ])  # fmt: skip  # one argument after the other says no more
    roll(ledger, NOW)
    assert b"'=HYPERLINK(1)" in read(ledger, "tag", make=statement_csv)
    assert "=HYPERLINK(1)" in {row["name"] for row in read(ledger, "tag")["division"]["rows"]}
