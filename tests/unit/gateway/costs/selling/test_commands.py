"""florin rate-card, cost invoice and cost margin: what they send, and what people read."""

import json

import pytest

from gateway.costs.selling.schemas import Assignment, CardLine, Invoice, RateCard, Tier
from gateway.costs.statement.schemas import Statement
from tests.support.command_cases import Case, check
from tests.support.samples import sample

CARD = sample(
    RateCard, name="standard", valid_from="2026-11", currency="USD", input_per_million="0.60", cached_per_million="0.06",
    output_per_million="2.40", residency_per_adapter_hour="0.0125", batch_percent=50, monthly_minimum="50.00",
    free_input_tokens=1_000_000,
)  # fmt: skip
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
ADAPTERS = [
    {"tenant": "acme", "adapter": "acme/x", "price": "9.00", "cost": "4.50", "margin": "4.50", "margin_percent": "50.00"},
    {"tenant": "acme", "adapter": "", "price": "1.00", "cost": None, "margin": None, "margin_percent": None},
    {"tenant": "acme", "adapter": None, "price": "-1.00", "cost": "2.00", "margin": "-3.00", "margin_percent": None},
]  # fmt: skip  # a row each
INVOICE = {"month": "2026-10", "tenant": "acme", "number": "17", "tax_name": "VAT", "tax_percent": "19"}
ISSUED = sample(Invoice, **INVOICE, currency="USD", amount_cents=10_000, tax_cents=1900, total_cents=11_900)
CREDIT_NOTE = ISSUED | {"number": "C-1", "kind": "credit_note", "corrects": "17", "reason": "Outage."}
CARDS, ASSIGNMENTS, INVOICES = (
    f"/finance/v1/{name}" for name in ("rate-cards", "rate-cards/assignments", "invoices")
)
ISSUE = "cost invoice --tenant acme --month 2026-10 --number 17 --tax-percent 19 --tax-name VAT"
CASES = (
    Case(
        "rate-card add standard --input 0.60 --cached 0.06 --output 2.40 --minimum 50 --free-input 1000000 --from 2026-11"
        " --residency 0.0125 --batch 50",
        {f"POST {CARDS}": (201, CARD)},
        ("Rate card standard from 2026-11, per million tokens: 0.60 input", "; 0.0125 USD per adapter-hour."),
        sends={
            "name": "standard", "input_per_million": "0.60", "cached_per_million": "0.06", "output_per_million": "2.40",
            "monthly_minimum": "50", "free_input_tokens": 1_000_000, "valid_from": "2026-11",
            "residency_per_adapter_hour": "0.0125", "batch_percent": 50,
        }, document=CARD,
    ),
    Case("rate-card add gold --input 1", code=2),
    Case(
        "rate-card list", {f"GET {CARDS}": {"data": [CARD], "assignments": [ASSIGNED, {**ASSIGNED, "tenant": None, "card": None}]}},
        ("standard", "0.0125", "50.00", "1,000,000 input", "acme", "(all others)", "none: cost"), ("per million tokens",),
    ),
    Case(
        "rate-card list --tenant acme", {f"GET {CARDS}?tenant=acme": {"data": [], "assignments": []}},
        notes=("florin rate-card add NAME",),
    ),
    *(
        Case(f"rate-card {words}", {f"POST {ASSIGNMENTS}": (201, {**ASSIGNED, **sends})}, (says,), sends=sends)
        for words, sends, says in (
            ("assign acme --card standard --from 2026-11",
             {"tenant": "acme", "card": "standard", "valid_from": "2026-11"}, "acme pays by rate card standard"),
            ("assign --default --card standard", {"tenant": None, "card": "standard"}, "Every tenant"),
            ("unassign acme", {"tenant": "acme", "card": None}, "acme pays what its usage cost from 2026-11"),
        )
    ),
    Case(
        "cost margin --month 2026-10", {"GET /finance/v1/margin?month=2026-10": {**MARGIN, "complete": False}},
        ("1,200.00", "700.01 100.49 399.50 33.29", "not charged: retries", "-9.48", "-12.00", "383.02"),
        ("is open", "No GPU price for L40S on_demand", "Incomplete"), document={**MARGIN, "complete": False},
    ),
    Case(
        "cost margin --month 2026-10 --by adapter", {"GET /finance/v1/margin?month=2026-10&by=adapter": {**MARGIN, "adapters": ADAPTERS}},
        ("acme acme/x 9.00 4.50 4.50 50.00 acme (base model) 1.00 - - - acme (not by adapter) -1.00 2.00 -3.00 -",),
    ),
    Case("cost margin --by tag", code=2),
    Case("cost margin", {"GET /finance/v1/margin": {**MARGIN, "rows": []}}, notes=("No usage in 2026-10.",)),
    Case(
        ISSUE, {f"POST {INVOICES}": (201, ISSUED)}, ("Invoice 17: the statement of acme for 2026-10, 119.00 USD.",),
        sends=INVOICE,
    ),
    Case(
        f"{ISSUE} --corrects 16 --reason Typo", {f"POST {INVOICES}": (201, ISSUED | {"kind": "corrected_invoice", "corrects": "16"})},
        ("Invoice 17 replaces 16: the statement of acme for 2026-10, 119.00 USD.",),
        sends=INVOICE | {"corrects": "16", "reason": "Typo"},
    ),
    Case(
        f"{ISSUE} --corrects 17 --reason Outage. --credit 1",
        {f"POST {INVOICES}": (201, CREDIT_NOTE | {"amount_cents": -100, "tax_cents": -19, "total_cents": -119})},
        ("Credit note C-1 on invoice 17: -1.19 USD.",),
        sends=INVOICE | {"corrects": "17", "reason": "Outage.", "credit": "1"},
    ),
    Case(
        "cost invoices --month 2026-10", {f"GET {INVOICES}?month=2026-10": {"data": [ISSUED, CREDIT_NOTE]}},
        ("17 invoice acme 2026-10 100.00 USD 119.00 USD", "17 Outage."),
    ),
    Case("cost invoices", {f"GET {INVOICES}": {"data": []}}, notes=("florin cost invoice",)),
)  # fmt: skip  # a case each


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command(fake, case):
    check(fake, case)


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
    fake.answer("GET", "/finance/v1/rate-cards", {"data": [{**CARD, "lines": lines}], "assignments": []})
    assert "llama-70b" in fake.florin("rate-card", "list").stdout


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
