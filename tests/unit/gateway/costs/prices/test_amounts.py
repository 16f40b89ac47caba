from fractions import Fraction

import pytest

from gateway.costs.prices.amounts import decimal_of, total


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


def test_a_total_is_exact():
    assert total(["0.1"] * 10) == 1
    assert total([]) == 0
