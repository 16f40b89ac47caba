"""What customers pay for closed and open months, recomputed from the records in exact fractions; and that it
is sealed."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from sqlalchemy import select, text, update

from gateway.costs.closing.closing import close
from gateway.costs.closing.preview import settlement_now
from gateway.costs.margins.margin import month_margin
from gateway.costs.merkle import RECORD_FIELDS
from gateway.costs.proofs.proof import public, verify_proof
from gateway.costs.reports.closed_months import covered_page, proof_of
from gateway.costs.selling.invoices import Invoice
from gateway.costs.statement.issuing import issue, show
from gateway.costs.statement.page import statement_json, statement_page
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.schema import period_tenants, usage
from gateway.units import amount_text
from tests.unit.gateway.costs.selling.sold import ENGINE, LATE, NOW, arrive_late, close_october, fill
from tests.unit.gateway.metering.make import change_record

PER_MILLION = (Fraction("0.60"), Fraction("0.06"), Fraction("2.40"))
OCTOBER_TOKENS = (9 * 10_000, 9 * 2_345, 9 * 678)


def price(tokens, free=10_000):
    counts = (tokens[0] - free, *tokens[1:])
    return sum(count * rate for count, rate in zip(counts, PER_MILLION, strict=True)) / 10**6


def statement(ledger, tenant, of):
    return statement_json(ledger, tenant, of, issuer="Nordlicht", now=NOW, known=True)


def fill_ledger(ledger):
    fill(ledger)
    close_october(ledger)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def test_a_statement_is_tokens_times_the_rate_card(ledger):
    made = statement(ledger, "acme", "2026-10")
    assert made["basis"] == "rate_card"
    assert Fraction(made["charges"]["exact"]) == price(OCTOBER_TOKENS)
    assert made["amount_cents"] == round(price(OCTOBER_TOKENS) * 100)
    [row] = made["usage"]
    assert (row["requests"], row["input_tokens"], row["cached_tokens"]) == (9, 9 * 12_345, 9 * 2_345)
    assert made["unused_time_cents"] == 0  # a price has it already
    assert sum(line["amount_cents"] for line in made["charges"]["lines"]) == made["amount_cents"]


def test_a_minimum_is_charged_without_usage(ledger):
    for month in ("2026-10", "2026-11"):
        made = statement(ledger, "corgi", month)
        assert (made["amount_cents"], made["usage"]) == (2500, [])
        assert made["charges"]["lines"][-1]["kind"] == "minimum"


def test_without_a_card_the_cost_is_charged_as_before(ledger):
    made = statement(ledger, "bolt", "2026-10")
    with ledger.read() as connection:
        query = select(period_tenants.c.document).where(period_tenants.c.tenant == "bolt")
        sealed = json.loads(connection.execute(query).scalar_one())
    assert (made["basis"], made["charges"]) == ("cost", None)
    assert made["amount_cents"] == sealed["amount_cents"]
    parts = made["unused_time_cents"] + sum(row["amount_cents"] for row in made["usage"])
    assert parts == made["amount_cents"]


def test_late_records_are_charged_at_their_month_s_card_with_month_and_reason(ledger):
    before = statement(ledger, "acme", "2026-11")
    arrive_late(ledger)
    made = statement(ledger, "acme", "2026-11")
    late = (LATE["prompt_tokens"] - LATE["cached_tokens"], LATE["cached_tokens"], LATE["completion_tokens"])
    [correction] = made["corrections"]
    assert (correction["month"], correction["input_tokens"]) == ("2026-10", LATE["prompt_tokens"])
    assert "after the month was closed" in correction["reason"]
    changed = Fraction(made["charges"]["exact"]) - Fraction(before["charges"]["exact"])
    assert changed == price(late, free=0)  # October's allowance was used up by October's own tokens
    assert statement(ledger, "acme", "2026-10")["charges"]["exact"] == str(
        Decimal(price(OCTOBER_TOKENS).numerator) / price(OCTOBER_TOKENS).denominator
    )
    cost = statement(ledger, "bolt", "2026-11")["corrections"]
    assert {item["month"] for item in cost} == {"2026-10"}
    assert all(item["reason"] for item in cost)


def test_nothing_jumps_when_the_month_is_closed(ledger):
    arrive_late(ledger)
    names = ("acme", "bolt", "corgi")
    before = [statement(ledger, name, "2026-11") for name in names]
    close(ledger, "2026-11", now=NOW, by="test")
    after = [statement(ledger, name, "2026-11") for name in names]
    for one, other in zip(before, after, strict=True):
        assert (one["state"], other["state"]) == ("preliminary", "final")
        for name in ("amount_cents", "charges", "usage", "corrections"):
            assert one[name] == other[name], name


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


def test_charges_are_sealed(ledger):
    assert all(check.ok for check in verify(ledger, "2026-10")[0].checks)
    with ledger.write() as connection:
        query = select(period_tenants.c.document).where(period_tenants.c.tenant == "acme")
        document = json.loads(connection.execute(query).scalar_one())
        document["charges"]["amount_cents"] -= 1
        cheaper = update(period_tenants).where(period_tenants.c.tenant == "acme")
        connection.execute(cheaper.values(document=json.dumps(document)))
    found = {check.name: check.ok for check in verify(ledger, "2026-10")[0].checks}
    assert not found["seal"]
    assert not found["statements"]


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


@pytest.mark.parametrize("tenant", ["acme", "bolt"])
def test_a_proof_shows_the_price_and_stays_verifiable(ledger, tenant):
    proof = json.loads(json.dumps(proof_of(ledger, "2026-10", tenant, for_tenant=True)))
    records = json.loads(covered_page(ledger, "2026-10", tenant, None, 100, by_staff=False)[0])
    checks = verify_proof(proof, records, proof["seal"])
    assert not [check for check in checks if check.ok is False]
    assert set(records[0]) == set(RECORD_FIELDS) - {
        *("end_user", "tag", "cost_centre", "service_tier", "task")
    }  # it has none
    assert ENGINE not in json.dumps([proof, records])
    assert proof["statement"]["amount_cents"] == statement(ledger, tenant, "2026-10")["amount_cents"]
    assert not {"cost", "nano_gpu_hours", "withheld"} & set(proof["statement"])
    forged = {**proof, "statement": {**proof["statement"], "amount_cents": 1}}
    assert [check.ok for check in verify_proof(forged)][2] is False


def test_the_public_part_of_a_statement_without_lines_of_retries():
    line = {"kind": "usage", "amount_cents": 3, "cost": "0.03", "nano_gpu_hours": 9}
    made = public({"tenant": "a", "cost": "1", "lines": [line, {**line, "amount_cents": None}]})
    assert made == {"tenant": "a", "lines": [{"kind": "usage", "amount_cents": 3}]}


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
