"""Prices are tokens times rates, exactly; cards hold by month and tenant."""

from fractions import Fraction

import pytest

from gateway.costs.closing.charging import charges_of
from gateway.costs.selling.assignments import Assignment, RateCards
from gateway.costs.selling.card_lines import PriceKey, Tokens
from gateway.costs.selling.charges import TenantMonth
from gateway.costs.selling.invoices import Invoice
from gateway.units import amount_text
from tests.unit.gateway.costs.selling.cards import card, charge


def test_a_month_is_tokens_times_rates():
    made = charge(card(), Tokens(1_234_567, 7_654_321, 333_333))
    expected = (
        Fraction("0.60") * 1_234_567 + Fraction("0.06") * 7_654_321 + Fraction("2.40") * 333_333
    ) / 10**6
    assert Fraction(made.amount, 10**15) == expected
    assert made.top_up == 0


def test_free_tokens_are_not_charged_and_never_more_than_were_used():
    terms = card(free_input=1_000_000, free_output=10**9)
    made = charge(terms, Tokens(1_500_000, -1, 5_000))  # more was corrected away than there was
    assert [(kind.quantity, kind.free) for kind in made.kinds] == [
        (1_500_000, 1_000_000),
        (0, 0),
        (5_000, 5_000),
    ]
    assert Fraction(made.amount, 10**15) == Fraction("0.30")


@pytest.mark.parametrize(
    ("tokens", "amount"), [(0, "50"), (10**6, "50"), (83_333_333, "50"), (100_000_000, "60")]
)
def test_a_minimum_tops_up_what_is_below_it(tokens, amount):
    made = charge(card(minimum_micros=50_000_000), Tokens(tokens, 0, 0))
    assert Fraction(made.amount, 10**15) == Fraction(amount)


def test_cents_are_rounded_once_and_the_lines_sum_to_them():
    # 0.0049 of each kind: nothing by itself, 0.0147 together
    terms = card(input_micros=4_900, cached_micros=4_900, output_micros=4_900)
    made = charges_of(TenantMonth(charge(terms, Tokens(10**6, 10**6, 10**6))))
    assert amount_text(made.exact) == "0.0147"
    assert made.amount_cents == 1
    assert sum(line.amount_cents for line in made.lines) == 1
    assert [line.sku for line in made.lines] == ["tokens/input", "tokens/cached-input", "tokens/output"]
    assert made.lines[0].price == "standard/2026-10/input"


def test_versions_and_assignments_hold_from_their_month():
    first, second = card(), card(valid_from="2026-12", input_micros=1)
    own = [Assignment("acme", "standard", "2026-11", 1), Assignment("acme", "", "2027-02", 2)]
    cards = RateCards([first, second], own)
    months = ["2026-10", "2026-11", "2026-12", "2027-01", "2027-02"]
    assert [cards.card("acme", month) for month in months] == [None, first, second, second, None]
    assert cards.card("bolt", "2026-11") is None


@pytest.mark.parametrize(
    ("cents", "tax", "amount"),
    [(10_000, 19_000_000, 1900), (50, 1_000_000, 1), (49, 1_000_000, 0), (-50, 1_000_000, -1)],
)
def test_tax_is_rounded_half_away_from_zero(cents, tax, amount):
    assert Invoice("2026-10", "acme", "1", "VAT", tax, "", 0).tax_cents(cents) == amount


def test_batches_have_a_discount_after_the_free_tokens():
    """Of 3 M input tokens 1 M are free, of 2.5 M of batches 2 M are charged."""
    terms = card(free_input=1_000_000, batch_percent=40)
    made = charge(terms, Tokens(3_000_000, 0, 1_000_000), batch=Tokens(2_500_000, 0, 1_000_000))
    listed = sum(kind.amount for kind in made.kinds)
    of_batches = terms.list_price(PriceKey(), Tokens(2_000_000, 0, 1_000_000))
    assert made.batch_discount == -of_batches * 60 // 100
    assert made.amount == listed + made.batch_discount
    charges = charges_of(TenantMonth(made))
    [line] = [line for line in charges.lines if line.kind == "batch_discount"]
    assert (line.input_tokens, line.output_tokens, line.batch_percent) == (2_500_000, 1_000_000, 40)
    assert line.amount_cents < 0
    assert sum(line.amount_cents for line in charges.lines) == charges.amount_cents
    same, used = card(batch_percent=100), Tokens(10**6, 0, 0)
    assert charge(same, used, batch=used) == charge(same, used), (
        "documents of earlier months stay as they were"
    )
