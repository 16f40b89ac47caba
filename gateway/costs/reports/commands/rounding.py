"""Rounds amounts for people so that columns add up, because a reader will check."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal

from gateway.units import places_of


def cents_of(cents: int | None) -> Decimal | None:
    return None if cents is None else Decimal(cents).scaleb(-2)


def summed(amounts: Sequence[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if len(known) == len(amounts) else None


def places_for(amounts: Sequence[Decimal | None], currency: str | None) -> int:
    """The decimal places of the currency: more for smaller amounts."""
    largest = max((abs(amount) for amount in amounts if amount is not None), default=Decimal(0))
    least = places_of(currency)
    return least if largest >= 100 else least + 2 if largest >= 1 else least + 4


def rounded(amounts: Sequence[Decimal | None], total: Decimal | None, places: int) -> list[Decimal | None]:
    """Rounds by the largest remainder, so that the amounts sum to the rounded `total`. If one is unknown,
    each is rounded on its own."""
    unit = Decimal(1).scaleb(-places)
    known = [amount for amount in amounts if amount is not None]
    if total is None or len(known) < len(amounts):
        return [a if a is None else a.quantize(unit, ROUND_HALF_UP) for a in amounts]
    floors = [amount.quantize(unit, ROUND_FLOOR) for amount in known]
    left = int((total.quantize(unit, ROUND_HALF_UP) - sum(floors, Decimal(0))) / unit)
    order = sorted(range(len(known)), key=lambda i: floors[i] - known[i])
    for index in order[: max(left, 0)]:
        floors[index] += unit
    return list(floors)
