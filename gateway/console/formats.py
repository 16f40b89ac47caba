"""Values as people read them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from gateway.units import shown, shown_money

NONE: Final = "–"  # noqa: RUF001  # a dash, as in tables
_STEPS: Final = (
    (60, 1, "s"),
    (3_600, 60, "min"),
    (2 * 86_400, 3_600, "h"),
    (90 * 86_400, 86_400, "d"),
)


def exact(moment: int | None) -> str:
    """Unix microseconds as `2026-11-23 13:46:12 UTC`."""
    if moment is None:
        return NONE
    return datetime.fromtimestamp(moment // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(moment: int) -> str:
    return datetime.fromtimestamp(moment // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def relative(moment: int | None, now: int) -> str:
    """`3 min ago`, `in 2 h`; farther away than 90 days: the date."""
    if moment is None:
        return NONE
    seconds = (now - moment) / 1e6
    size = abs(seconds)
    if size < 1:
        return "now"
    for below, unit, name in _STEPS:
        if size < below:
            amount = f"{int(size // unit)} {name}"
            return f"{amount} ago" if seconds > 0 else f"in {amount}"
    return exact(moment)[:10]


def number(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int | Decimal) else str(value)


def compact(value: float | None) -> str:
    """`1.2 M`."""
    if value is None:
        return NONE
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:g}"


def size(value: float | None) -> str:
    """Bytes, in binary units."""
    if value is None:
        return NONE
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(value) >= 1 << power:
            return f"{value / (1 << power):.3g} {unit}"
    return f"{value:g} B"


def percent(value: float | None) -> str:
    """Format a share between 0 and 1."""
    return NONE if value is None else f"{value * 100:.1f} %"


def seconds(value: float | None) -> str:
    if value is None:
        return NONE
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


def money(value: Any, currency: str = "") -> str:
    """An amount (Decimal or its text) with its currency after it: in the smallest unit, or if it is less than
    one, with up to six places. Exports have all places."""
    return _with_currency(amount_of(value, currency), currency)


def amount_of(value: Any, currency: str = "") -> str:
    """`money` without its currency."""
    if value is None or value == "":
        return NONE
    amount = Decimal(str(value))
    text = shown_money(amount, currency)
    if 0 < abs(amount) < 1:
        text = shown(amount, 6).rstrip("0").ljust(len(text), "0")
    return text


def rate(value: Any, currency: str = "") -> str:
    """A price: with two places, also in currencies that have fewer."""
    return _with_currency(amount_of(value), currency)


def _with_currency(text: str, currency: str) -> str:
    return text if text == NONE else f"{text} {currency}".rstrip()
