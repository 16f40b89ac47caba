"""Prices are tokens times rates, exactly; cards hold by month and tenant."""

from fractions import Fraction

import pytest

from gateway.costs.closing.charging import charges_of
from gateway.costs.selling.assignments import Assignment, RateCards
from gateway.costs.selling.card_lines import PriceKey, Tokens
from gateway.costs.selling.cards import RateCardError, card_name, minimum, percent, rate
from gateway.costs.selling.charges import MonthCorrection, TenantMonth
from gateway.costs.selling.invoices import Invoice, due_date
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
    made = charge(terms, Tokens(1_500_000, 0, 5_000))
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


def test_a_correction_takes_allowance_and_minimum_into_account():
    """3 dollars of late tokens, of which the month's minimum had already paid 2."""
    terms = card(minimum_micros=5_000_000)
    before, after = charge(terms, Tokens(5_000_000, 0, 0)), charge(terms, Tokens(10_000_000, 0, 0))
    changed = MonthCorrection(before, after)
    assert changed.tokens == Tokens(5_000_000, 0, 0)
    assert Fraction(changed.amount, 10**15) == Fraction(1)


def test_cents_are_rounded_once_and_the_lines_sum_to_them():
    # 0.0049 of each kind: nothing by itself, 0.0147 together
    terms = card(input_micros=4_900, cached_micros=4_900, output_micros=4_900)
    made = charges_of(TenantMonth(charge(terms, Tokens(10**6, 10**6, 10**6))))
    assert amount_text(made.exact) == "0.0147"
    assert made.amount_cents == 1
    assert sum(line.amount_cents for line in made.lines) == 1
    assert [line.sku for line in made.lines] == ["tokens/input", "tokens/cached-input", "tokens/output"]
    assert made.lines[0].price == "standard/2026-10/input"


def test_a_month_s_document_names_corrections_with_month_and_reason():
    terms = card(minimum_micros=50_000_000)
    changed = MonthCorrection(charge(card(), Tokens()), charge(card(), Tokens(10**6, 0, 0)))
    made = charges_of(TenantMonth(charge(terms, Tokens(10**6)), {"2026-09": changed}, {"2026-08": -(10**15)}))
    kinds = [(line.kind, getattr(line, "month", None), line.amount_cents) for line in made.lines]
    assert kinds == [
        ("input", None, 60), ("cached", None, 0), ("output", None, 0), ("minimum", None, 4940),
        ("correction", "2026-09", 60), ("correction", "2026-08", -100),
    ]  # fmt: skip  # a line each says no more
    assert all(line.reason for line in made.lines if line.kind == "correction")
    assert made.amount_cents == 4960


def test_list_prices_can_be_negative_in_corrections():
    assert card().list_price(PriceKey(), Tokens(-1_000_000, 0, 0)) == -600_000_000_000_000


def test_versions_and_assignments_hold_from_their_month():
    first, second = card(), card(valid_from="2026-12", input_micros=1)
    own = [Assignment("acme", "standard", "2026-11", 1), Assignment("acme", "", "2027-02", 2)]
    cards = RateCards([first, second], own)
    months = ["2026-10", "2026-11", "2026-12", "2027-01", "2027-02"]
    assert [cards.card("acme", month) for month in months] == [None, first, second, second, None]
    assert cards.card("bolt", "2026-11") is None


def test_the_default_is_for_all_without_an_assignment_and_the_last_row_counts():
    cheap, dear = card(name="cheap"), card(name="dear")
    rows = [
        Assignment("", "cheap", "2026-10", 1), Assignment("acme", "cheap", "2026-10", 2),
        Assignment("acme", "dear", "2026-10", 3),
    ]  # fmt: skip
    replaced = card(name="cheap", reason="a slip", output_micros=1)
    cards = RateCards([cheap, dear, replaced], rows)
    assert cards.card("bolt", "2026-11") == replaced
    assert cards.card("acme", "2026-11") == dear


@pytest.mark.parametrize("value", ["-1", "0.0000001", "1e9"])
def test_rates_are_decimals_of_six_places(value):
    with pytest.raises(RateCardError, match="six places") as refused:
        rate("input_per_million", value)
    assert refused.value.param == "input_per_million"


def test_what_is_valid_is_taken_exactly():
    assert rate("x", "0.000001") == 1
    assert minimum("1000000") == 10**12
    assert percent("7.7") == 7_700_000
    assert card_name("acme-2026") == "acme-2026"
    assert due_date("2026-11-30") == "2026-11-30"


@pytest.mark.parametrize("value", ["", "Acme", "a b", "-a", "a" * 64, "é"])
def test_names_of_cards(value):
    with pytest.raises(RateCardError, match="not a name for a rate card"):
        card_name(value)


@pytest.mark.parametrize("value", ["", "2026-13-01", "30.11.2026", "2026-02-30", "20261130"])
def test_due_dates(value):
    with pytest.raises(RateCardError, match="not a date"):
        due_date(value)


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


@pytest.mark.parametrize(("percent", "batch"), [(100, Tokens(10**6, 0, 0)), (40, Tokens())])
def test_without_a_discount_the_document_is_as_it_always_was(percent: int, batch: Tokens):
    made = charge(card(batch_percent=percent), Tokens(10**6, 0, 0), batch=batch)
    assert made == charge(card(batch_percent=percent), Tokens(10**6, 0, 0))
    assert (
        charges_of(TenantMonth(made)).document()["lines"]
        == charges_of(TenantMonth(charge(card(), Tokens(10**6, 0, 0)))).document()["lines"]
    )


def test_the_minimum_counts_what_batches_cost():
    terms = card(batch_percent=0, minimum_micros=1_000_000)
    made = charge(terms, Tokens(10**6, 0, 0), batch=Tokens(10**6, 0, 0))
    assert made.amount == made.top_up == 10**15
