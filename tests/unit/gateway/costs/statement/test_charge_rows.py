"""One file of what all customers are charged: rows sum to the statements, whatever they cost."""

import csv
from dataclasses import replace
from decimal import Decimal

import pytest

from gateway.costs.events.event_pages import NotClosedError, charge_events
from gateway.costs.export.files import Order
from gateway.costs.rollups.rollup import roll
from gateway.costs.selling.invoices import Invoice
from gateway.costs.statement.charge_rows import export_charges
from gateway.costs.statement.issuing import issue
from gateway.costs.statement.page import statement_csv
from tests.unit.gateway.costs.selling.sold import NOW, close_october, fill

ORDER = Order("2026-10", "csv", "charges", "Nordlicht GmbH")
INVOICE = Invoice("2026-10", "acme", "2026-0117", "VAT", 19_000_000, "", NOW)


@pytest.fixture
def sold(ledger):
    fill(ledger)
    roll(ledger, NOW)
    return ledger


def charges(ledger, tmp_path, order=ORDER):
    path = tmp_path / "charges.csv"
    path.touch()
    count = export_charges(ledger, order, path, 10**6)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == count
    return rows


def test_the_tax_on_an_invoice_is_a_row_of_the_file_and_of_the_statement(sold, tmp_path):
    close_october(sold)
    issue(sold, INVOICE, issuer="Nordlicht GmbH")
    rows = [row for row in charges(sold, tmp_path) if row["tenant"] == "acme"]
    assert {row["invoice"] for row in rows} == {"2026-0117"}
    [tax] = [row for row in rows if row["line"] == "tax"]
    table = statement_csv(sold, "acme", "2026-10", issuer="", now=NOW, known=True)
    lines = list(csv.DictReader(table.decode().splitlines()))
    assert (lines[-1]["line"], lines[-1]["name"], lines[-1]["amount"]) == ("tax", "VAT 19 %", tax["amount"])
    assert {line["invoice"] for line in lines} == {"2026-0117"}
    assert {Decimal(line["total"]) for line in lines} == {sum(Decimal(line["amount"]) for line in lines)}
    assert [line["sku"] for line in lines[:-1]] == [row["sku"] for row in rows[:-1]]


def test_events_of_charges_have_the_same_ids_and_amounts_each_time(sold, tmp_path):
    with pytest.raises(NotClosedError):
        charge_events(sold, "2026-10", source="florin/test")
    close_october(sold)
    events = charge_events(sold, "2026-10", source="florin/test")
    issue(sold, INVOICE, issuer="Nordlicht GmbH")
    assert charge_events(sold, "2026-10", source="florin/test") == events
    assert len({event["id"] for event in events}) == len(events)
    rows = charges(sold, tmp_path, replace(ORDER, tenants=("acme",)))
    acme = [event["data"] for event in events if event["subject"] == "acme"]
    assert [data["amount"] for data in acme] == [row["amount"] for row in rows if row["line"] != "tax"]
