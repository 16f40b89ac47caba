"""Exact amounts: fractions inside, decimals at the edges."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from gateway.costs.prices.book import decimal_text

PLACES = 18
"""To which a quotient without a finite decimal is rounded, half to even."""
_MOST = 80


def decimal_of(amount: Fraction, places: int = PLACES) -> str:
    """The exact decimal where there is one, else the one rounded to `places`; no exponent, at least two
    places."""
    denominator = amount.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    if denominator == 1:
        bits = amount.denominator.bit_length()  # 2**a·5**b divides 10**max(a, b), and max(a, b) < bits
        if bits <= _MOST:
            places = bits
    return decimal_text(round(amount * 10**places), places)


def total(amounts: Iterable[str]) -> Fraction:
    """The exact sum of decimals."""
    return sum(map(Fraction, amounts), Fraction(0))
