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
"""Hundredths of the currency, as statements are rounded: to its smallest unit (see `step_of`)."""

CENT: Final = Amount(FEMTO // 100)
NOTHING: Final = Amount(0)
FREE: Final = Micros(0)

_MINOR_UNITS: Final[dict[str, int]] = {
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI"), 0),
    **dict.fromkeys(("VND", "VUV", "XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
    **dict.fromkeys(("CLF", "UYW"), 4),
}
"""Decimal places of the currencies that do not have two: ISO 4217, list one, column "minor unit"."""

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


def places_of(currency: str | None) -> int:
    """Decimal places of a currency; 2 if it is not known."""
    return _MINOR_UNITS.get(currency or "", 2)


def step_of(currency: str | None) -> int:
    """Hundredths in the smallest unit of a currency: 100 for JPY, and 1 for finer ones, too."""
    return 100 if places_of(currency) == 0 else 1


def cents_of(amount: int | Fraction, step: int = 1) -> Cents:
    """An amount as it is stated: rounded half up, to whole steps of so many hundredths."""
    return Cents(half_up(amount, CENT * step) * step)


def rounded(
    parts: Mapping[Key, int | Fraction], to: int, unit: int = CENT, *, step: int = 1
) -> dict[Key, Cents]:
    """Largest remainder method: round each part down to whole units, then add one to the largest remainders
    (ties: smaller key) until they sum to `to`, which must be the sum of the parts, rounded up or down. If
    `to` is of whole steps of so many units, each is."""
    if step > 1 and to % step == 0:
        steps = rounded(parts, to // step, unit * step)
        return {key: Cents(count * step) for key, count in steps.items()}
    floors = {key: int(part // unit) for key, part in parts.items()}
    missing = to - sum(floors.values())
    assert 0 <= missing <= len(parts), "it is not the sum of the parts"
    for key in sorted(parts, key=lambda key: (-(parts[key] % unit), key))[:missing]:
        floors[key] += 1
    return {key: Cents(units) for key, units in floors.items()}


def apportioned(
    parts: Mapping[Key, int | Fraction], to: int, unit: int = CENT, *, step: int = 1
) -> dict[Key, Cents]:
    """`rounded`, also where `to` is a few cents off the sum of the parts, because it is what other rounded
    amounts leave: each part bears the same of the difference."""
    if not parts:
        return {}
    if step > 1 and to % step == 0:
        steps = apportioned(parts, to // step, unit * step)
        return {key: Cents(count * step) for key, count in steps.items()}
    floor = sum(int(part // unit) for part in parts.values())
    each, rest = divmod(to - floor, len(parts))
    return {key: Cents(cents + each) for key, cents in rounded(parts, floor + rest, unit).items()}


def short(text: str) -> str:
    """A decimal without superfluous zeros."""
    return f"{Decimal(text).normalize():f}"


def percent(share: Decimal | str | None) -> str:
    """A share between 0 and 1, for people."""
    return "-" if share is None else f"{shown(Decimal(share) * 100, 1)}%"


def shown_cents(cents: int | None, currency: str | None, sign: str = "") -> str:
    """With the decimal places of the currency."""
    return "-" if cents is None else shown(Decimal(cents).scaleb(-2), places_of(currency), sign)


def shown_money(number: Decimal | str | None, currency: str | None) -> str:
    """`shown`, with the decimal places of the currency."""
    return shown(number, places_of(currency))


def shown(number: Decimal | str | None, places: int = 2, sign: str = "") -> str:
    """For people: rounded half up, with separators; `-` for None. `sign`: `+` to show it always."""
    if number is None:
        return "-"
    return f"{Decimal(number).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP):{sign},}"
