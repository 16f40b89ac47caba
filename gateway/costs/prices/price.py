"""Prices: what a GPU-hour costs for some time, and which can stand beside each other. Rates are decimals
with at most six places, stored as integer millionths."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gateway.costs.field_error import FieldError
from gateway.costs.periods import iso
from gateway.units import Micros, decimal_text, micros_text, typed_units

PURCHASES = ("on_demand", "spot", "reserved")
_LARGEST = 1_000_000

Series = tuple[str, str, str]
"""GPU type, region, purchase model."""


class PriceError(FieldError):
    """An invalid price. `param` names the field."""


class PriceConflictError(Exception):
    """The price would overlap or contradict an existing one."""


@dataclass(frozen=True, slots=True)
class Price:
    gpu_type: str
    rate_micros: Micros
    """Per GPU-hour."""
    currency: str
    purchase: str
    region: str
    valid_from: int
    """Unix microseconds, UTC; inclusive."""
    valid_to: int | None
    """Exclusive. None: until the next price of the series that has none either."""
    recorded_at: int
    speedup_millis: int | None = None
    """Thousandths of the speed of `speedup_reference`; None: not stated."""
    speedup_reference: str | None = None
    """A GPU type."""
    speedup_source: str | None = None
    """Who measured it."""
    id: int = 0
    """0: not in the ledger, or in a month that was closed before prices had numbers."""
    supersedes: int | None = None
    """The price that this one corrects."""
    withdrawn: bool = False
    """The corrected price should not have been added: this row prices nothing."""
    reason: str | None = None
    """Why it corrects another."""

    @property
    def series(self) -> Series:
        return self.gpu_type, self.region, self.purchase

    @property
    def named(self) -> str:
        """Its series in words, like `H100 (spot, eu)`."""
        return f"{self.gpu_type} ({self.purchase}{f', {self.region}' if self.region else ''})"

    def covers(self, time: int) -> bool:
        return self.valid_from <= time and (self.valid_to is None or time < self.valid_to)

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "gpu_type": self.gpu_type,
            "rate_per_gpu_hour": micros_text(self.rate_micros),
            "currency": self.currency,
            "purchase": self.purchase,
            "region": self.region,
            "valid_from": iso(self.valid_from),
            "valid_to": None if self.valid_to is None else iso(self.valid_to),
            "recorded_at": iso(self.recorded_at),
            "speedup": None if self.speedup_millis is None else decimal_text(self.speedup_millis, 3),
            "speedup_reference": self.speedup_reference,
            "speedup_source": self.speedup_source,
            "supersedes": self.supersedes,
            "withdrawn": self.withdrawn,
            "reason": self.reason,
        }


def in_force(history: Iterable[Price]) -> list[Price]:
    """Those of all prices ever added that nothing supersedes, in their order."""
    known = list(history)
    superseded = {price.supersedes for price in known}
    return [price for price in known if price.id not in superseded and not price.withdrawn]


def current(series: Iterable[Price], time: int) -> Price | None:
    """The price of one series that applies at a time."""
    return max((p for p in series if p.covers(time)), key=lambda p: p.valid_from, default=None)


def same_series(price: Price, other: Price) -> bool:
    return (price.gpu_type.lower(), *price.series[1:]) == (other.gpu_type.lower(), *other.series[1:])


def rate_micros(value: str) -> Micros:
    """Raises PriceError unless `value` is a decimal ≥ 0 with at most six places."""
    rate = typed_units(value, 6, _LARGEST)
    if rate is None:
        raise PriceError(
            "rate_per_gpu_hour",
            f"{value[:40]!r} is not a rate: write a decimal of at most six places, 0 to {_LARGEST}.",
        )
    return Micros(rate)


def speedup_millis(value: str) -> int:
    """Raises PriceError unless `value` is a decimal > 0 with at most three places."""
    factor = typed_units(value, 3, _LARGEST)
    if not factor:
        raise PriceError(
            "speedup",
            f"{value[:40]!r} is not a speedup: write a decimal of at most three places above 0, like 2.5.",
        )
    return factor


def check(new: Price, book: Iterable[Price]) -> Price | None:
    """The same price, if the book already has it. Raises PriceConflictError if `new` would overlap
    another."""
    for old in book:
        if old.currency != new.currency:
            raise PriceConflictError(
                f"The price book uses {old.currency}; a price in {new.currency} cannot be added."
            )
        if not same_series(old, new):
            continue
        if old.valid_from == new.valid_from:
            if (old.rate_micros, old.valid_to) == (new.rate_micros, new.valid_to) and as_fast(old, new):
                return old
            raise PriceConflictError(
                f"{old.named} already has a price from {iso(old.valid_from)}; prices are never edited. "
                f"{_how_to_correct(old)}"
            )
        first, second = sorted((old, new), key=lambda p: p.valid_from)
        if first.valid_to is not None and first.valid_to > second.valid_from:
            ends = "on" if old.valid_to is None else f"to {iso(old.valid_to)}"
            raise PriceConflictError(
                f"It overlaps the price of {old.named} from {iso(old.valid_from)} {ends}. "
                f"{_how_to_correct(old)}"
            )
    return None


def _how_to_correct(price: Price) -> str:
    return f"To correct it: florin price correct {price.id or 'ID'} --reason …"


def as_fast(old: Price, new: Price) -> bool:
    """Whether `new` states the same speedup, or none."""
    speedup = (new.speedup_millis, new.speedup_reference, new.speedup_source)
    return speedup in {(None,) * 3, (old.speedup_millis, old.speedup_reference, old.speedup_source)}
