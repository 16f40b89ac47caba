"""What customers pay for closed and open months, recomputed from the records in exact fractions; and that it
is sealed."""

from fractions import Fraction

import pytest
from sqlalchemy import select, text

from gateway.costs.closing.preview import settlement_now
from gateway.costs.margins.margin import month_margin
from gateway.costs.selling.invoices import Invoice
from gateway.costs.statement.issuing import issue, show
from gateway.costs.statement.page import statement_page
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.schema import usage
from gateway.units import amount_text
from tests.unit.gateway.costs.selling.sold import NOW, arrive_late, close_october, fill, statement
from tests.unit.gateway.metering.make import change_record


def fill_ledger(ledger):
    fill(ledger)
    close_october(ledger)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def test_a_margin_is_price_less_cost_to_the_last_digit(ledger):
    arrive_late(ledger)
    for month in ("2026-10", "2026-11"):
        made = month_margin(ledger, month)
        with ledger.read() as connection:
            settled = settlement_now(connection, month).settlement
        for row in made["rows"]:
            cost = Fraction(amount_text(settled.statements[row["tenant"]].cost))
            parts = Fraction(row["cost_excluding_unused_time"]) + Fraction(row["cost_of_unused_time"])
            assert Fraction(row["cost"]) == cost == parts
            assert Fraction(row["margin"]) == Fraction(row["price"]) - cost
        bolt = next(row for row in made["rows"] if row["tenant"] == "bolt")
        assert (bolt["rate_card"], Fraction(bolt["margin"])) == (None, 0)
        whole = sum(Fraction(row["price"]) for row in made["rows"]) - Fraction(
            amount_text(settled.totals.cost)
        )
        assert Fraction(made["totals"]["margin"]) == whole
        said = statement(ledger, "bolt", month)  # the same cents as on the statement, everywhere
        assert bolt["unused_time_cents"] == said["unused_time_cents"]
        assert bolt["cost_cents"] == said["amount_cents"] == bolt["amount_cents"]
        left = sum(made["not_charged_cents"].values())
        assert sum(row["cost_cents"] for row in made["rows"]) + left == made["totals"]["cost_cents"]
        assert sum(row["amount_cents"] for row in made["rows"]) == made["totals"]["price_cents"]


@pytest.mark.parametrize("change", [{"engine": "other"}, {"gpu_count": 1}])
def test_what_customers_do_not_see_is_sealed_too(ledger, change):
    with ledger.write() as connection:
        for id_ in connection.execute(select(usage.c.id)).scalars().all():
            change_record(connection, id_, **change)
    found = {check.name: check.ok for check in verify(ledger, "2026-10")[0].checks}
    assert not found["records"]


def test_a_changed_rate_card_in_the_database_changes_no_closed_month(ledger):
    before = statement(ledger, "acme", "2026-10")["charges"]
    with ledger.write() as connection:
        connection.execute(text("UPDATE rate_cards SET output_micros = 1"))
    assert statement(ledger, "acme", "2026-10")["charges"] == before
    assert all(check.ok for check in verify(ledger, "2026-10")[0].checks)


def test_the_page_shows_charges_tax_and_due_date_and_no_gpu(ledger):
    invoice = Invoice("2026-10", "acme", "2026-0117", "VAT", 19_000_000, "2026-11-30", NOW)
    issue(ledger, invoice, issuer="Nordlicht")
    asked = {"issuer": "Nordlicht", "now": NOW, "known": True}
    page = show(ledger, "acme", "2026-10", form="html", **asked)
    made = statement(ledger, "acme", "2026-10")
    assert made["total_cents"] == made["amount_cents"] + made["tax_cents"]
    assert made["invoice"]["number"] == "2026-0117"
    for said in (
        "2026-0117",
        "2026-11-30",
        "VAT, 19 %",
        "Total with VAT",
        "Free allowance",
        "of which cached",
    ):
        assert said in page, said
    assert "GPU" not in page.partition("<body>")[2]
    assert "Seal of the month" in page
    cost = statement_page(ledger, "bolt", "2026-10", issuer="Nordlicht", now=NOW, known=True)
    assert "amounts without your share of unused time" in cost
    assert "per million tokens, excluding unused time" in cost
    assert "GPU-hours" not in cost.replace("\N{NON-BREAKING HYPHEN}", "-").partition("<body>")[2]
