"""Prices and rates so far from the ones before them that they may be slips: a decimal point, another unit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.costs.prices.price import Price, current, same_series
from gateway.units import decimal_text

FACTOR: Final = 5
"""Prices that really change seldom do so more than this at once; a slip of the decimal point makes ten."""


class UnconfirmedJumpError(Exception):
    """The message says what would change from what."""


def check_jump(what: str, before: int, after: int, *, places: int) -> None:
    """Both in units of the last of so many decimal places. Raises UnconfirmedJumpError if one is at least
    `FACTOR` times the other."""
    least, most = sorted((before, after))
    if least != most >= FACTOR * least:
        raise UnconfirmedJumpError(
            f"{what} would be {decimal_text(after, places)} instead of {decimal_text(before, places)}. "
            "If that is right, confirm it: `--yes`, or `confirm=true` in the API."
        )


def check_price_jump(new: Price, book: Iterable[Price]) -> None:
    """Compare with the price of its series that applies just before it begins, or else with the first one
    after it. Raises UnconfirmedJumpError."""
    series = [price for price in book if same_series(price, new)]
    following = min(
        (p for p in series if p.valid_from > new.valid_from), key=lambda p: p.valid_from, default=None
    )
    neighbour = current(series, new.valid_from - 1) or following
    if neighbour is not None:
        what = f"A GPU-hour of {new.named} in {new.currency}"
        check_jump(what, neighbour.rate_micros, new.rate_micros, places=6)
