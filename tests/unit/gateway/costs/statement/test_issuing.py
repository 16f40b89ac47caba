"""What was issued does not change: an invoice shows for ever what it showed."""

import csv
import json
from dataclasses import replace

import pytest
from sqlalchemy import text

from gateway.costs.closing.closing import close
from gateway.costs.periods import month_of
from gateway.costs.selling.cards import RateCardConflictError
from gateway.costs.selling.invoices import Invoice, list_invoices
from gateway.costs.statement.issuing import UnknownNumberError, issue, show
from gateway.units import DAY
from tests.support.ledger_rows import exchange_rate
from tests.unit.gateway.costs.selling.sold import NOW, arrive_late, fill

OCTOBER = month_of("2026-10").start
INVOICE = Invoice("2026-10", "acme", "2026-0117", "VAT", 19_000_000, "2026-11-30", NOW)
EUROS = replace(INVOICE, currency="EUR")
CORRECTED = replace(
    EUROS,
    number="2026-0118",
    kind="corrected_invoice",
    corrects="2026-0117",
    reason="Wrong rate.",
    recorded_at=NOW + DAY,
)
FORMS = ("html", "json", "csv")


def fill_ledger(ledger):
    fill(ledger)
    exchange_rate(ledger, "0.9", OCTOBER)
    close(ledger, "2026-10", now=NOW, by="test")


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def issued(ledger, invoice):
    return issue(ledger, invoice, issuer="Nordlicht")[0]


def shown(ledger, form="json", tenant="acme", issuer="Nordlicht", **asked):
    content = show(ledger, tenant, "2026-10", form=form, issuer=issuer, now=NOW, known=True, **asked)
    return json.loads(content) if form == "json" else content


def add_a_later_rate(ledger):
    """For a day of October, after the month was closed."""
    exchange_rate(ledger, "1.8", OCTOBER + 30 * DAY, now=NOW + 1)


@pytest.mark.parametrize("form", FORMS)
def test_an_issued_statement_stays_as_it_was_issued_byte_for_byte(ledger, form):
    issued(ledger, EUROS)
    before = shown(ledger, form)
    add_a_later_rate(ledger)
    arrive_late(ledger)
    with ledger.write() as connection:
        connection.execute(text("UPDATE period_tenants SET document = '{}'"))
    assert shown(ledger, form, issuer="Nordlicht & Daughters") == before
    assert shown(ledger, form, currency="EUR") == shown(ledger, form, number="2026-0117") == before


def test_a_final_statement_is_converted_at_the_rates_that_were_known_when_the_month_was_closed(ledger):
    before = shown(ledger, currency="EUR")
    add_a_later_rate(ledger)
    assert shown(ledger, currency="EUR") == before
    exchange_rate(ledger, "0.5", OCTOBER, now=NOW + 2, target="GBP")
    first = shown(ledger, currency="GBP")
    exchange_rate(ledger, "0.6", OCTOBER, now=NOW + 3, target="GBP", reason="Typing error")
    assert shown(ledger, currency="GBP") == first, "none was known, so the first counts"


def test_a_corrected_invoice_replaces_it_under_its_own_number_at_the_newest_rate(ledger):
    in_dollars = shown(ledger)
    before = issued(ledger, EUROS)
    add_a_later_rate(ledger)
    after = issued(ledger, CORRECTED)
    assert after.amount_cents == pytest.approx(before.amount_cents * 2, abs=1)
    statement = shown(ledger)
    assert (statement["amount_cents"], statement["invoice"]["number"]) == (after.amount_cents, "2026-0118")
    assert (statement["invoice"]["corrects"], statement["invoice"]["reason"]) == ("2026-0117", "Wrong rate.")
    assert "This invoice replaces invoice 2026-0117: Wrong rate." in shown(ledger, "html")
    assert shown(ledger, number="2026-0117")["amount_cents"] == before.amount_cents
    divided = shown(ledger, by="key")
    assert (divided["amount_cents"], divided["invoice"]["number"]) == (after.amount_cents, "2026-0118")
    assert shown(ledger, currency="USD") == in_dollars, "no invoice is in them"
    with pytest.raises(UnknownNumberError):
        shown(ledger, tenant="bolt", number="2026-0117")


def test_a_credit_note_takes_an_amount_off_with_the_invoice_s_tax(ledger):
    invoice = issued(ledger, INVOICE)
    note = replace(
        CORRECTED,
        currency="",
        number="C-1",
        kind="credit_note",
        reason="Outage.",
        amount_cents=-1,
        tax_micros=0,
    )
    credited = issued(ledger, note)
    assert (credited.currency, credited.tax_micros) == ("USD", 19_000_000)
    document = shown(ledger, number="C-1")
    assert (document["kind"], document["corrects"], document["amount_cents"]) == (
        "credit_note",
        "2026-0117",
        -1,
    )
    assert "Outage." in shown(ledger, "html", number="C-1")
    [line] = csv.DictReader(shown(ledger, "csv", number="C-1").splitlines())
    assert {name: line[name] for name in ("invoice", "line", "name", "amount", "total", "currency")} == {
        "invoice": "C-1",
        "line": "credit_note",
        "name": "Outage.",
        "amount": "-0.01",
        "total": "-0.01",
        "currency": "USD",
    }
    assert shown(ledger)["invoice"]["number"] == "2026-0117", "the invoice still counts"
    rest = replace(note, number="C-2", amount_cents=-invoice.amount_cents)
    with pytest.raises(RateCardConflictError, match="a credit note cannot take off more"):
        issued(ledger, rest)


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (replace(INVOICE, number="2026-0118"), "--corrects 2026-0117 --reason"),
        (replace(INVOICE, tax_micros=0), "what was issued does not change"),
        (replace(INVOICE, currency="EUR"), "what was issued does not change"),
        (replace(CORRECTED, number="2026-0117"), "what was issued does not change"),
        (replace(CORRECTED, corrects="2026-0116"), "--corrects 2026-0117"),
        (replace(INVOICE, tenant="bolt"), "already given to acme for 2026-10"),
        (replace(CORRECTED, tenant="bolt"), "bolt has no invoice for 2026-10 yet"),
    ],
)
def test_nothing_else_changes_it(ledger, new, why):
    issued(ledger, INVOICE)
    assert issue(ledger, INVOICE, issuer="Nordlicht")[1] is False
    with pytest.raises(RateCardConflictError, match=why):
        issued(ledger, new)
    assert [invoice.number for invoice in list_invoices(ledger, None, None)] == ["2026-0117"]


def test_an_invoice_of_an_earlier_version_is_shown_as_before(ledger):
    with ledger.write() as connection:
        connection.execute(
            text(
                "INSERT INTO invoices (month, tenant, number, tax_name, tax_micros, due, recorded_at) "
                "VALUES ('2026-10', 'acme', '17', 'VAT', 19000000, '', 1)"
            )
        )
    assert shown(ledger)["invoice"]["number"] == "17"
    assert shown(ledger)["tax_cents"] > 0
