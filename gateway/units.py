"""Money, GPU time and time: integers, each with its unit. Decimal text is for documents and people; it is
written and read here.

The types cost nothing at run time; with them, mypy refuses a rate where an amount belongs. Arithmetic gives
plain integers, so that whoever multiplies or adds says what comes out: `Amount(nano * rate)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final, NewType, TypeVar, cast

Key = TypeVar("Key", bound=Any)
Unit = TypeVar("Unit", bound=int)

HOUR: Final = 3_600_000_000
"""In microseconds, as all times are."""
DAY: Final = 24 * HOUR
MICRO: Final = 10**6
NANO: Final = 10**9
FEMTO: Final = 10**15
"""The parts of one unit of the currency that amounts count."""

Amount = NewType("Amount", int)
"""10**-15 of the currency: GPU time times its rate, exactly."""
Micros = NewType("Micros", int)
"""Millionths of the currency: a rate or a price."""
NanoHours = NewType("NanoHours", int)
"""10**-9 GPU-hours."""
MilliHours = NewType("MilliHours", int)
"""Thousandths of an hour in which an adapter is resident."""
Cents = NewType("Cents", int)
"""Hundredths of the currency, as statements are rounded."""

CENT: Final = Amount(FEMTO // 100)
NOTHING: Final = Amount(0)
FREE: Final = Micros(0)

QUOTIENT_PLACES: Final = 18
"""Places for a quotient without a finite decimal, rounded half to even."""
_MOST: Final = 80


def decimal_text(units: int, places: int) -> str:
    """The exact decimal `units` / 10**`places`, at least two places, no exponent: `2.50`, `0.000125`."""
    sign, units = ("-", -units) if units < 0 else ("", units)
    integer, part = divmod(units, 10**places)
    return f"{sign}{integer}.{str(part).zfill(places).rstrip('0').ljust(2, '0')}"


def amount_text(amount: Amount) -> str:
    return decimal_text(amount, 15)


def micros_text(micros: Micros) -> str:
    return decimal_text(micros, 6)


def gpu_hours_text(nano: NanoHours) -> str:
    return decimal_text(nano, 9)


def hours_text(milli: MilliHours) -> str:
    return decimal_text(milli, 3)


def short_text(units: int, places: int) -> str:
    """`decimal_text` without superfluous zeros: `19`, `7.7`."""
    return decimal_text(units, places).rstrip("0").rstrip(".")


def decimal_of(number: Fraction, places: int = QUOTIENT_PLACES) -> str:
    """The exact decimal if it is finite, else rounded to `places`; no exponent, at least two places."""
    denominator = number.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    if denominator == 1:
        bits = number.denominator.bit_length()  # 2**a·5**b divides 10**max(a, b), and max(a, b) < bits
        if bits <= _MOST:
            places = bits
    return decimal_text(round(number * 10**places), places)


def units_of(text: str, places: int) -> int:
    """The inverse of `decimal_text`. Raises ValueError for text that is finer than `places`."""
    integer, _, part = text.removeprefix("-").partition(".")
    if len(part) > places:
        raise ValueError(f"{text} has more than {places} decimal places")
    return (-1 if text.startswith("-") else 1) * int(integer + part.ljust(places, "0"))


def amount_of(text: str) -> Amount:
    return Amount(units_of(text, 15))


def typed_units(text: str, places: int, most: int) -> int | None:
    """What a person typed, as an integer of 10**-`places`; None unless it is a decimal from 0 to `most` with
    at most that many places."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite() or not 0 <= number <= most or number != round(number, places):
        return None
    return int(number.scaleb(places))


def worth(micros: Micros) -> Amount:
    """The same value as an amount."""
    return Amount(micros * (FEMTO // MICRO))


def total(units: Iterable[Unit]) -> Unit:
    return cast("Unit", sum(units))


def half_up(number: int | Fraction, unit: int = 1) -> int:
    """`number` in whole units, rounded half up."""
    return int((2 * number + unit) // (2 * unit))


def cents_of(amount: int | Fraction) -> Cents:
    """An amount as it is stated: rounded half up."""
    return Cents(half_up(amount, CENT))


def rounded(parts: Mapping[Key, int | Fraction], to: int, unit: int = CENT) -> dict[Key, Cents]:
    """Largest remainder method: round each part down to whole units, then add one to the largest remainders
    (ties: smaller key) until they sum to `to`, which must be the sum of the parts, rounded up or down."""
    floors = {key: int(part // unit) for key, part in parts.items()}
    missing = to - sum(floors.values())
    assert 0 <= missing <= len(parts), "it is not the sum of the parts"
    for key in sorted(parts, key=lambda key: (-(parts[key] % unit), key))[:missing]:
        floors[key] += 1
    return {key: Cents(units) for key, units in floors.items()}


def apportioned(parts: Mapping[Key, int | Fraction], to: int, unit: int = CENT) -> dict[Key, Cents]:
    """`rounded`, also where `to` is a few cents off the sum of the parts, because it is what other rounded
    amounts leave: each part bears the same of the difference."""
    if not parts:
        return {}
    floor = sum(int(part // unit) for part in parts.values())
    each, rest = divmod(to - floor, len(parts))
    return {key: Cents(cents + each) for key, cents in rounded(parts, floor + rest, unit).items()}


def short(text: str) -> str:
    """A decimal without superfluous zeros."""
    return f"{Decimal(text).normalize():f}"


def percent(share: Decimal | str | None) -> str:
    """A share between 0 and 1, for people."""
    return "-" if share is None else f"{shown(Decimal(share) * 100, 1)}%"


def shown_cents(cents: int | None, sign: str = "") -> str:
    return "-" if cents is None else shown(Decimal(cents).scaleb(-2), 2, sign)


def shown(number: Decimal | str | None, places: int = 2, sign: str = "") -> str:
    """For people: rounded half up, with separators; `-` for None. `sign`: `+` to show it always."""
    if number is None:
        return "-"
    return f"{Decimal(number).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP):{sign},}"
