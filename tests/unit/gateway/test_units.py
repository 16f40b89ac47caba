"""Integers with their unit, and their decimal text."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.units import (
    CENT,
    amount_of,
    amount_text,
    apportioned,
    cents_of,
    decimal_of,
    decimal_text,
    half_up,
    rounded,
    short_text,
    shown,
    shown_cents,
    shown_money,
    step_of,
    typed_units,
    units_of,
)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (Fraction(0), "0.00"),
        (Fraction(5), "5.00"),
        (Fraction(-1, 8), "-0.125"),
        (Fraction(1, 10**21), "0." + "0" * 20 + "1"),
        (Fraction(1, 2**30), "0.000000000931322574615478515625"),
        (Fraction(2, 3), "0.666666666666666667"),
        (Fraction(-2, 3), "-0.666666666666666667"),
    ],
)
def test_a_finite_decimal_is_exact_and_another_rounded(amount, text):
    assert decimal_of(amount) == text


def test_places_bound_only_what_has_no_finite_decimal():
    assert decimal_of(Fraction(1, 3), 4) == "0.3333"
    assert decimal_of(Fraction(1, 2**10), 4) == "0.0009765625"


@given(st.integers(-(10**40), 10**40), st.sampled_from((2, 3, 6, 9, 15)))
def test_text_is_read_back_exactly(units, places):
    text = decimal_text(units, places)
    assert units_of(text, places) == units
    assert units_of(text, places + 3) == units * 1000
    assert Fraction(text) == Fraction(units, 10**places)


def test_text_that_is_finer_than_the_unit_is_refused():
    assert amount_text(amount_of("0.000000000000001")) == "0.000000000000001"
    with pytest.raises(ValueError, match="15 decimal places"):
        amount_of("0.0000000000000001")


def test_superfluous_zeros_are_left_out():
    assert (short_text(19_000_000, 6), short_text(7_700_000, 6), short_text(0, 6)) == ("19", "7.7", "0")


@pytest.mark.parametrize(
    ("text", "units"),
    [
        *(("0", 0), ("1e3", 1_000_000_000), ("0.000001", 1), ("1000000", 10**12)),
        *((text, None) for text in ("", "-1", "0.0000001", "1000000.1", "2,50", "NaN", "Infinity", "one")),
        *((text, None) for text in ("1" * 5000, "0." + "1" * 5000, "1e999999999", "1e-999999999")),
    ],
)
def test_what_a_person_typed_is_taken_exactly_or_not_at_all(text, units):
    assert typed_units(text, 6, 10**6) == units


@pytest.mark.parametrize(
    ("number", "unit", "units"),
    [(14, 10, 1), (15, 10, 2), (-15, 10, -1), (-16, 10, -2), (Fraction(1, 2), 1, 1), (Fraction(10, 3), 1, 3)],
)
def test_a_half_is_rounded_up(number, unit, units):
    assert half_up(number, unit) == units


@given(st.lists(st.integers(-(10**18), 10**18), min_size=1, max_size=20))
def test_parts_in_cents_sum_to_the_rounded_sum_and_none_is_a_cent_off(amounts):
    parts = dict(enumerate(amounts))
    cents = rounded(parts, cents_of(sum(amounts)))
    assert sum(cents.values()) == cents_of(sum(amounts))
    assert all(abs(Fraction(parts[key], CENT) - cents[key]) < 1 for key in parts)
    assert all(cents[key] * CENT == parts[key] for key in parts if parts[key] % CENT == 0)


def test_ties_go_to_the_smaller_key():
    assert rounded({"b": CENT // 2, "a": CENT // 2}, 1) == {"a": 1, "b": 0}


@given(st.lists(st.integers(-(10**18), 10**18), min_size=1, max_size=20), st.integers(-50, 50))
def test_what_is_apportioned_sums_to_what_is_left(amounts, off):
    parts = dict(enumerate(amounts))
    rest = sum(amounts) // CENT + off
    assert sum(apportioned(parts, rest).values()) == rest
    assert apportioned({}, 0) == {}


def test_people_see_rounded_numbers_with_separators():
    assert shown("1234567.005") == "1,234,567.01"
    assert shown(Decimal(-5), 3) == "-5.000"
    assert shown("0.5", 1, "+") == "+0.5"
    assert shown(None) == "-"


def test_amounts_have_the_places_of_their_currency():
    assert [shown_cents(16_580_100, name) for name in ("JPY", "USD", "KWD", None)] == [
        "165,801", "165,801.00", "165,801.000", "165,801.00",
    ]  # fmt: skip
    assert (shown_money("165800.95", "JPY"), shown_money("1.5", "BHD")) == ("165,801", "1.500")


@given(st.lists(st.integers(-(10**22), 10**22), min_size=1, max_size=9))
def test_parts_in_whole_yen_sum_to_whole_yen(amounts):
    step = step_of("JPY")
    total = cents_of(sum(amounts), step)
    parts = rounded(dict(enumerate(amounts)), total, step=step)
    assert sum(parts.values()) == total
    assert all(cents % 100 == 0 and abs(cents * CENT - amounts[n]) < 100 * CENT for n, cents in parts.items())
    assert sum(apportioned(dict(enumerate(amounts)), total + 700, step=step).values()) == total + 700
