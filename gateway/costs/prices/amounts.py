"""Exact amounts as decimal text."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

PLACES = 18
"""Places for a quotient without a finite decimal, rounded half to even."""
_MOST = 80


def decimal_text(units: int, places: int) -> str:
    """The exact decimal `units` / 10**`places`, at least two places, no exponent: `2.50`, `0.000125`."""
    sign, units = ("-", -units) if units < 0 else ("", units)
    whole, part = divmod(units, 10**places)
    return f"{sign}{whole}.{str(part).zfill(places).rstrip('0').ljust(2, '0')}"


def decimal_of(amount: Fraction, places: int = PLACES) -> str:
    """The exact decimal if it is finite, else rounded to `places`; no exponent, at least two places."""
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
