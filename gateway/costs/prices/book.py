"""The price book: what a GPU-hour costs over time, by GPU type, region and purchase model.

Append-only: a price is never edited. A price without `valid_to` is valid until the next price of its series
(the same GPU type, region and purchase model). Rates are decimals with at most six places, stored as integer
millionths.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from gateway.costs.periods import iso
from gateway.costs.prices.amounts import decimal_text

PURCHASES = ("on_demand", "spot", "reserved")
NOT_SAID = ("", "on_demand")
"""Region and purchase model of an engine that was registered without them."""
_LARGEST = Decimal(1_000_000)

Series = tuple[str, str, str]
"""GPU type, region, purchase model."""


class PriceError(ValueError):
    """An invalid price. `param` names the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class PriceConflictError(Exception):
    """The price would overlap or contradict an existing one."""


@dataclass(frozen=True, slots=True)
class Price:
    gpu_type: str
    rate_micros: int
    """Millionths of the currency per GPU-hour."""
    currency: str
    purchase: str
    region: str
    valid_from: int
    """Unix microseconds, UTC; inclusive."""
    valid_to: int | None
    """Exclusive. None: until the next price of the series."""
    recorded_at: int
    speedup_millis: int | None = None
    """Thousandths of the speed of `speedup_reference`; None: not stated."""
    speedup_reference: str | None = None
    """A GPU type."""
    speedup_source: str | None = None
    """Who measured it."""

    @property
    def series(self) -> Series:
        return self.gpu_type, self.region, self.purchase

    def document(self) -> dict[str, Any]:
        return {
            "gpu_type": self.gpu_type,
            "rate_per_gpu_hour": decimal_text(self.rate_micros, 6),
            "currency": self.currency,
            "purchase": self.purchase,
            "region": self.region,
            "valid_from": iso(self.valid_from),
            "valid_to": None if self.valid_to is None else iso(self.valid_to),
            "recorded_at": iso(self.recorded_at),
            "speedup": None if self.speedup_millis is None else decimal_text(self.speedup_millis, 3),
            "speedup_reference": self.speedup_reference,
            "speedup_source": self.speedup_source,
        }


@dataclass(frozen=True, slots=True)
class Rate:
    """A price and the time in which it applies."""

    start: int
    end: int | None
    rate_micros: int


def rate_micros(value: str) -> int:
    """Raises PriceError unless `value` is a decimal ≥ 0 with at most six places."""
    rate = _decimal(value)
    if rate is None or rate != round(rate, 6):
        raise PriceError(
            "rate_per_gpu_hour",
            f"{value[:40]!r} is not a rate: write a decimal of at most six places, 0 to {_LARGEST}.",
        )
    return int(rate.scaleb(6))


def speedup_millis(value: str) -> int:
    """Raises PriceError unless `value` is a decimal > 0 with at most three places."""
    factor = _decimal(value)
    if not factor or factor != round(factor, 3):
        raise PriceError(
            "speedup",
            f"{value[:40]!r} is not a speedup: write a decimal of at most three places above 0, like 2.5.",
        )
    return int(factor.scaleb(3))


def _decimal(value: str) -> Decimal | None:
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    return number if number.is_finite() and 0 <= number <= _LARGEST else None


def check(new: Price, book: Iterable[Price]) -> Price | None:
    """The same price, if the book already has it. Raises PriceConflictError if `new` would overlap
    another."""
    for old in book:
        if old.currency != new.currency:
            raise PriceConflictError(
                f"The price book uses {old.currency}; a price in {new.currency} cannot be added."
            )
        if old.series != new.series:
            continue
        if old.valid_from == new.valid_from:
            if (old.rate_micros, old.valid_to) == (new.rate_micros, new.valid_to) and _as_fast(old, new):
                return old
            raise PriceConflictError(
                f"{new.gpu_type} already has a price from {iso(old.valid_from)}; prices are never edited."
            )
        first, second = sorted((old, new), key=lambda p: p.valid_from)
        if first.valid_to is not None and first.valid_to > second.valid_from:
            raise PriceConflictError(
                f"The price overlaps the price of {new.gpu_type} from {iso(old.valid_from)}."
            )
    return None


def _as_fast(old: Price, new: Price) -> bool:
    """Whether `new` states the same speedup, or none."""
    said = (new.speedup_millis, new.speedup_reference, new.speedup_source)
    return said in {(None,) * 3, (old.speedup_millis, old.speedup_reference, old.speedup_source)}


class PriceBook:
    """Prices, indexed for look-ups by engine attributes and time.

    An engine-hour is priced by the series of its GPU type, region and purchase model; if there is none, by
    the series of that purchase model without a region. An engine registered without region and purchase model
    uses the only series of its GPU type; if there are several, the price is missing. A gap in the chosen
    series is a missing price: no other series fills it."""

    def __init__(self, prices: Iterable[Price]) -> None:
        series: dict[Series, list[Price]] = {}
        for price in sorted(prices, key=lambda p: p.valid_from):
            series.setdefault(price.series, []).append(price)
        self.currency = next((p[0].currency for p in series.values()), None)
        self._rates = {key: _rates(of) for key, of in series.items()}
        types = [gpu_type for gpu_type, _, _ in series]
        self._only = {key[0]: key for key in series if types.count(key[0]) == 1}

    def series(self, gpu_type: str, region: str, purchase: str) -> Series | None:
        """The series that prices such an engine; None: no price."""
        for key in ((gpu_type, region, purchase), (gpu_type, "", purchase)):
            if key in self._rates:
                return key
        return self._only.get(gpu_type) if (region, purchase) == NOT_SAID else None

    def rates(self, gpu_type: str, region: str, purchase: str) -> Sequence[Rate]:
        """The rates of its series, ascending and disjoint."""
        key = self.series(gpu_type, region, purchase)
        return () if key is None else self._rates[key]

    def rules(self) -> Iterator[tuple[str, str | None, str, Sequence[Rate]]]:
        """The rules of `series` in order: (GPU type, region or None for any, purchase, rates). The first
        match applies."""
        for (gpu_type, region, purchase), rates in self._rates.items():
            if region:
                yield gpu_type, region, purchase, rates
        for (gpu_type, region, purchase), rates in self._rates.items():
            if not region:
                yield gpu_type, None, purchase, rates
        for gpu_type, key in self._only.items():
            if key[1:] != NOT_SAID:
                yield gpu_type, *NOT_SAID, self._rates[key]

    def rate(self, gpu_type: str, region: str, purchase: str, at: int) -> int | None:
        """Millionths per GPU-hour at the time `at`; None: no price."""
        rates = self.rates(gpu_type, region, purchase)
        index = bisect_right(rates, at, key=lambda r: r.start) - 1
        if index < 0:
            return None
        found = rates[index]
        return found.rate_micros if found.end is None or at < found.end else None

    def changes(self, gpu_type: str, region: str, purchase: str, start: int, end: int) -> list[int]:
        """The times in (start, end) at which a rate begins or ends, ascending."""
        rates = self.rates(gpu_type, region, purchase)
        times = {t for rate in rates for t in (rate.start, rate.end) if t is not None}
        return sorted(t for t in times if start < t < end)


def _rates(prices: Sequence[Price]) -> list[Rate]:
    following = [p.valid_from for p in prices[1:]]
    ends = [*following, None]
    return [
        Rate(p.valid_from, end if p.valid_to is None else p.valid_to, p.rate_micros)
        for p, end in zip(prices, ends, strict=True)
    ]
