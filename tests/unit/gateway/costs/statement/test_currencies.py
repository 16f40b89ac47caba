"""Statements have the decimal places of their currency."""

import pytest

from gateway.costs.closing.closing import close
from gateway.costs.manual_lines.store import request_line
from gateway.costs.selling.cards import RateCardError
from gateway.costs.selling.invoices import Invoice
from gateway.costs.statement.issuing import issue
from gateway.costs.statement.page import statement_json, statement_page
from gateway.costs.verification.verify import verify
from gateway.units import DAY
from tests.support.ledger_rows import price
from tests.unit.gateway.costs import month as fleet
from tests.unit.gateway.costs.manual_lines.lines import line
from tests.unit.gateway.costs.month import NOVEMBER, OCTOBER, TENANTS
from tests.unit.gateway.costs.selling.cards import sell

NOW = NOVEMBER + DAY
ABOUT = {"issuer": "Nordlicht", "now": NOW, "known": False}


@pytest.fixture
def yen(ledger):
    """October in JPY; acme has a rate card."""
    price(ledger, "H100", "37351.37", currency="JPY")
    price(ledger, "L40", "10500.11", currency="JPY")
    ledger.insert(fleet.records(0, OCTOBER))
    fleet.span(ledger, OCTOBER)
    sell(ledger, "acme", currency="JPY", input_micros=10**10 + 7, output_micros=3 * 10**10 + 1)
    return ledger


def amounts(document):
    return [
        document["amount_cents"],
        document["unused_time_cents"],
        *(row["amount_cents"] for row in (*document["usage"], *document["division"]["rows"])),
        *(line["amount_cents"] for line in (document["charges"] or {"lines": ()})["lines"]),
    ]


def test_a_month_in_yen_has_whole_ones(yen):
    close(yen, "2026-10", now=NOW, by="test", policy="proportional")
    for tenant in TENANTS:
        document = statement_json(yen, tenant, "2026-10", by="key", **ABOUT)
        assert document["amount_cents"] > 100
        assert not any(amount % 100 for amount in amounts(document)), document
        assert document["amount_cents"] == sum(
            row["amount_cents"] for row in document["division"]["rows"]
        ) + (document["division"]["unused_time_cents"] + document["division"]["other_cents"])
        page = statement_page(yen, tenant, "2026-10", **ABOUT)
        assert f"<b>{document['amount_cents'] // 100:,}</b> JPY" in page
    [checked] = verify(yen, "2026-10")
    assert [check for check in checked.checks if check.ok is False] == []


def test_parts_of_fees_and_taxes_are_whole_yen(yen):
    fee = line("fee", 100_000, "bolt", begins="2026-10-10", prorated=True)
    request_line(yen, fee, approved=True, actor="key:a")
    close(yen, "2026-10", now=NOW, by="test", policy="proportional")
    [part] = statement_json(yen, "bolt", "2026-10", **ABOUT)["manual_lines"]
    assert part["amount_cents"] == 71_000, "22 of 31 days of 1,000 yen"
    invoice = Invoice("2026-10", "bolt", "A-1", "VAT", 19_000_000, "", NOW)
    issued, _ = issue(yen, invoice, issuer="Nordlicht")
    document = issued.document()
    assert document["tax_cents"] % 100 == document["total_cents"] % 100 == 0
    shown = statement_json(yen, "bolt", "2026-10", **ABOUT)
    assert (shown["tax_cents"], shown["total_cents"]) == (document["tax_cents"], document["total_cents"])


def test_an_amount_with_decimals_is_no_amount_in_yen(yen):
    with pytest.raises(RateCardError, match="JPY has no decimals"):
        request_line(yen, line("credit", 4050, "bolt"), approved=True, actor="key:a")
