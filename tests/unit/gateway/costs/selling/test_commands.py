"""florin rate-card, cost invoice and cost margin: what they send, and what people read."""

from __future__ import annotations

import json

import pytest

from gateway.costs.selling.schemas import Assignment, CardLine, Invoice, RateCard, Tier
from gateway.costs.statement.schemas import Statement
from tests.support.samples import sample

CARD = sample(
    RateCard,
    name="standard",
    valid_from="2026-11",
    currency="USD",
    input_per_million="0.60",
    cached_per_million="0.06",
    output_per_million="2.40",
    residency_per_adapter_hour="0.0125",
    batch_percent=50,
    monthly_minimum="50.00",
    free_input_tokens=1_000_000,
)
ASSIGNED = sample(Assignment, tenant="acme", card="standard", valid_from="2026-11")
MARGIN = {
    "month": "2026-10", "state": "open", "currency": "USD", "policy": "proportional",
    "missing_prices": ["L40S on_demand"], "complete": True,
    "rows": [
        {"tenant": "acme", "rate_card": "standard", "price": "1200.004", "amount_cents": 120000,
         "cost_excluding_unused_time": "700.00", "cost_of_unused_time": "100.50", "cost": "800.50",
         "cost_cents": 80050, "unused_time_cents": 10049,
         "margin": "399.504", "margin_percent": "33.29"},
        {"tenant": "bolt", "rate_card": None, "price": "5.00", "amount_cents": 500,
         "cost_excluding_unused_time": None, "cost_of_unused_time": None, "cost": None, "margin": None,
         "cost_cents": None, "unused_time_cents": None,
         "margin_percent": None},
    ],
    "not_charged": {"retry_waste": "9.48", "unallocated": "12.00"},
    "not_charged_cents": {"retry_waste": 948, "unallocated": 1200},
    "totals": {"price": "1205.004", "price_cents": 120500, "cost_cents": 82198, "cost": "821.98", "margin": "383.024", "margin_percent": "31.79"},
}  # fmt: skip  # as above
INVOICE = {"month": "2026-10", "tenant": "acme", "number": "17", "tax_name": "VAT", "tax_percent": "19"}
ADD = ("rate-card", "add", "standard", "--input", "0.60", "--cached", "0.06", "--output", "2.40")


def test_a_card_is_sent_as_text_and_shown_as_a_sentence(fake):
    fake.answer("POST", "/finance/v1/rate-cards", CARD, 201)
    options = (
        "--minimum",
        "50",
        "--free-input",
        "1000000",
        "--from",
        "2026-11",
        "--residency",
        "0.0125",
        "--batch",
        "50",
    )
    done = fake.florin(*ADD, *options)
    assert done.exit_code == 0, done.stderr
    [(_, _, sent)] = fake.asked
    assert sent == {
        "name": "standard", "input_per_million": "0.60", "cached_per_million": "0.06",
        "output_per_million": "2.40", "monthly_minimum": "50", "free_input_tokens": 1_000_000,
        "valid_from": "2026-11",
        "residency_per_adapter_hour": "0.0125", "batch_percent": 50,
    }  # fmt: skip  # as above
    assert "Rate card standard from 2026-11, per million tokens: 0.60 input" in done.stdout
    assert "; 0.0125 USD per adapter-hour." in done.stdout
    assert json.loads(fake.florin(*ADD, "--json").stdout) == CARD


def test_a_card_with_lines_comes_from_a_file(fake, tmp_path):
    prices = {"input_per_million": "18", "cached_per_million": "18", "output_per_million": "50"}
    lines = [sample(CardLine, name="large", base_model="llama-70b", **prices)]
    tiers = [sample(Tier, kind="input", above=1_000_000, price="8.00")]
    fake.answer("POST", "/finance/v1/rate-cards", {**CARD, "lines": lines, "tiers": tiers}, 201)
    path = tmp_path / "card.yaml"
    path.write_text(
        "name: standard\ninput_per_million: 9\noutput_per_million: 24.5\n"
        "lines: [{name: large, base_model: llama-70b, input_per_million: 18, output_per_million: 50}]\n"
    )
    done = fake.florin("rate-card", "add", "standard", "--file", str(path), "--output", "25")
    assert done.exit_code == 0, done.stderr
    assert fake.asked[0][2] == {
        "name": "standard", "input_per_million": "9", "output_per_million": "25",
        "lines": [{"name": "large", "base_model": "llama-70b", "input_per_million": "18", "output_per_million": "50"}],
    }  # fmt: skip  # as above
    assert "8.00 input above 1,000,000" in done.stdout
    assert "large, for llama-70b: 18 input" in done.stdout
    assert "'standard', not 'gold'" in fake.florin("rate-card", "add", "gold", "--file", str(path)).stderr
    assert fake.florin("rate-card", "add", "gold", "--input", "1").exit_code == 2
    fake.answer("GET", "/finance/v1/rate-cards", {"data": [{**CARD, "lines": lines}], "assignments": []})
    assert "llama-70b" in fake.florin("rate-card", "list").stdout


def test_cards_and_assignments_are_listed(fake):
    default = {**ASSIGNED, "tenant": None, "card": None}
    fake.answer("GET", "/finance/v1/rate-cards", {"data": [CARD], "assignments": [ASSIGNED, default]})
    done = fake.florin("rate-card", "list")
    for said in (
        "standard",
        "0.06",
        "0.0125",
        "50.00",
        "1,000,000 input",
        "acme",
        "(all others)",
        "none: cost",
    ):
        assert said in done.stdout, said
    assert "per million tokens" in done.stderr


def test_without_cards_it_says_what_to_do(fake):
    fake.answer("GET", "/finance/v1/rate-cards?tenant=acme", {"data": [], "assignments": []})
    assert "florin rate-card add NAME" in fake.florin("rate-card", "list", "--tenant", "acme").stderr


@pytest.mark.parametrize(
    ("args", "sent", "said"),
    [
        (("assign", "acme", "--card", "standard", "--from", "2026-11"),
         {"tenant": "acme", "card": "standard", "valid_from": "2026-11"}, "acme pays by rate card standard"),
        (("assign", "--default", "--card", "standard"), {"tenant": None, "card": "standard"}, "Every tenant"),
        (("unassign", "acme"), {"tenant": "acme", "card": None}, "acme pays what its usage cost from 2026-11"),
    ],
)  # fmt: skip  # a case each
def test_assignments(fake, args, sent, said):
    fake.answer("POST", "/finance/v1/rate-cards/assignments", {**ASSIGNED, **sent}, 201)
    done = fake.florin("rate-card", *args)
    assert fake.asked == [("POST", "/finance/v1/rate-cards/assignments", sent)]
    assert said in done.stdout


def test_the_margin_has_exact_figures_for_programs_and_a_table_for_people(fake):
    fake.answer("GET", "/finance/v1/margin?month=2026-10", MARGIN)
    done = fake.florin("cost", "margin", "--month", "2026-10")
    for said in ("1,200.00", "399.50", "33.29", "not charged: retries", "-9.48", "-12.00", "383.02"):
        assert said in done.stdout, said
    [acme] = [line for line in done.stdout.splitlines() if line.startswith("acme")]
    assert acme.split()[-4:] == ["700.01", "100.49", "399.50", "33.29"], "the statement's cents"
    assert "is open" in done.stderr
    assert "No GPU price for L40S on_demand" in done.stderr
    assert json.loads(fake.florin("cost", "margin", "--month", "2026-10", "--json").stdout) == MARGIN
    assert "Incomplete" not in done.stderr
    fake.answer("GET", "/finance/v1/margin?month=2026-10", {**MARGIN, "complete": False})
    assert "Incomplete" in fake.florin("cost", "margin", "--month", "2026-10").stderr


def test_the_margin_by_adapter(fake):
    rows = [
        {"tenant": "acme", "adapter": "acme/x", "price": "9.00", "cost": "4.50", "margin": "4.50", "margin_percent": "50.00"},
        {"tenant": "acme", "adapter": "", "price": "1.00", "cost": None, "margin": None, "margin_percent": None},
        {"tenant": "acme", "adapter": None, "price": "-1.00", "cost": "2.00", "margin": "-3.00", "margin_percent": None},
    ]  # fmt: skip  # a row each
    fake.answer("GET", "/finance/v1/margin?month=2026-10&by=adapter", {**MARGIN, "adapters": rows})
    lines = fake.florin("cost", "margin", "--month", "2026-10", "--by", "adapter").stdout.splitlines()
    assert lines[1].split() == ["acme", "acme/x", "9.00", "4.50", "4.50", "50.00"]
    assert lines[2].split() == ["acme", "(base", "model)", "1.00", "-", "-", "-"]
    assert lines[3].split() == ["acme", "(not", "by", "adapter)", "-1.00", "2.00", "-3.00", "-"]
    assert fake.florin("cost", "margin", "--by", "tag").exit_code == 2


def test_an_empty_month_has_no_margin(fake):
    fake.answer("GET", "/finance/v1/margin", {**MARGIN, "rows": []})
    assert "No usage in 2026-10." in fake.florin("cost", "margin").stderr


ISSUED = sample(Invoice, **INVOICE, currency="USD", amount_cents=10_000, tax_cents=1900, total_cents=11_900)
CREDIT_NOTE = ISSUED | {"number": "C-1", "kind": "credit_note", "corrects": "17", "reason": "Outage."}


@pytest.mark.parametrize(
    ("more", "answer", "says"),
    [
        ((), ISSUED, "Invoice 17: the statement of acme for 2026-10, 119.00 USD."),
        (
            ("--corrects", "16", "--reason", "Typing error"),
            ISSUED | {"kind": "corrected_invoice", "corrects": "16"},
            "Invoice 17 replaces 16: the statement of acme for 2026-10, 119.00 USD.",
        ),
        (
            ("--corrects", "17", "--reason", "Outage.", "--credit", "1"),
            CREDIT_NOTE | {"amount_cents": -100, "tax_cents": -19, "total_cents": -119},
            "Credit note C-1 on invoice 17: -1.19 USD.",
        ),
    ],
)
def test_an_invoice(fake, more, answer, says):
    fake.answer("POST", "/finance/v1/invoices", answer, 201)
    of = ("cost", "invoice", "--tenant", "acme", "--month", "2026-10", "--number", "17")
    done = fake.florin(*of, "--tax-percent", "19", "--tax-name", "VAT", *more)
    names = (name.removeprefix("--") for name in more[::2])
    assert fake.asked[0][2] == INVOICE | dict(zip(names, more[1::2], strict=True))
    assert says in " ".join(done.stdout.split())


def test_invoices(fake):
    fake.answer("GET", "/finance/v1/invoices?month=2026-10", {"data": [ISSUED, CREDIT_NOTE]})
    _, invoice, note = fake.florin("cost", "invoices", "--month", "2026-10").stdout.splitlines()
    assert invoice.split()[:8] == ["17", "invoice", "acme", "2026-10", "100.00", "USD", "119.00", "USD"]
    assert note.split()[-2:] == ["17", "Outage."]
    fake.answer("GET", "/finance/v1/invoices", {"data": []})
    assert "florin cost invoice" in fake.florin("cost", "invoices").stderr


def test_a_statement_s_figures(fake, tmp_path):
    figures = sample(Statement, amount_cents=5)
    fake.answer("GET", "/finance/v1/statements/acme?month=2026-10&format=json", figures)
    path = tmp_path / "s.json"
    of = ("cost", "statement", "--tenant", "acme", "--month", "2026-10", "--format", "json", "-o", str(path))
    assert fake.florin(*of).exit_code == 0
    assert json.loads(path.read_text()) == figures
    issued = "/finance/v1/statements/acme?month=2026-10&format=json&number=17"
    fake.answer("GET", issued, figures | {"amount_cents": 6})
    assert fake.florin(*of, "--number", "17").exit_code == 0
    assert json.loads(path.read_text())["amount_cents"] == 6
