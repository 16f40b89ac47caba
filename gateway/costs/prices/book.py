"""The price book: what a GPU-hour costs, by GPU type, region and purchase model, over time.

Append-only: a price is never edited. One without `valid_to` holds until the next of its series (the same GPU
type, region and purchase model) begins. Rates are decimals of at most six places, kept as integer millionths.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from gateway.costs.periods import iso

PURCHASES = ("on_demand", "spot", "reserved")
NOT_SAID = ("", "on_demand")
"""Region and purchase model of an engine that was registered without them."""
_LARGEST = Decimal(1_000_000)

Series = tuple[str, str, str]
"""GPU type, region, purchase model."""


class PriceError(ValueError):
    """A price that is none. `param` names the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class PriceConflictError(Exception):
    """It would overlap or contradict a price that stands."""


@dataclass(frozen=True, slots=True)
class Price:
    gpu_type: str
    rate_micros: int
    """Millionths of the currency per GPU-hour."""
    currency: str
    purchase: str
    region: str
    valid_from: int
    """Unix microseconds, UTC; included."""
    valid_to: int | None
    """Not included. None: until the next of the series."""
    recorded_at: int
    speedup_millis: int | None = None
    """Thousandths of the speed of `speedup_reference`; None: not said."""
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
    """A price and the time in which it really holds."""

    start: int
    end: int | None
    rate_micros: int


def decimal_text(units: int, places: int) -> str:
    """The exact decimal `units` / 10**`places`, at least two places, no exponent: `2.50`, `0.000125`."""
    sign, units = ("-", -units) if units < 0 else ("", units)
    whole, part = divmod(units, 10**places)
    return f"{sign}{whole}.{str(part).zfill(places).rstrip('0').ljust(2, '0')}"


def rate_micros(value: str) -> int:
    """Raises PriceError for what is no decimal ≥ 0 of at most six places."""
    rate = _decimal(value)
    if rate is None or rate != round(rate, 6):
        raise PriceError(
            "rate_per_gpu_hour",
            f"{value[:40]!r} is not a rate: write a decimal of at most six places, 0 to {_LARGEST}.",
        )
    return int(rate.scaleb(6))


def speedup_millis(value: str) -> int:
    """Raises PriceError for what is no decimal > 0 of at most three places."""
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
    """The same price, if it stands already. Raises PriceConflictError if `new` would overlap another."""
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
    """Whether `new` says nothing else about the speed, or nothing."""
    said = (new.speedup_millis, new.speedup_reference, new.speedup_source)
    return said in {(None,) * 3, (old.speedup_millis, old.speedup_reference, old.speedup_source)}


class PriceBook:
    """Prices made ready for look-ups by what an engine is and when it ran.

    What an engine-hour costs is said by the series of its GPU type, region and purchase model. Without one,
    by that of the same purchase model that names no region. An engine that says neither region nor purchase
    model takes the only series that its GPU type has; of several, none can be chosen, and the price is
    missing. A series chosen is not left for another where it has a gap."""

    def __init__(self, prices: Iterable[Price]) -> None:
        series: dict[Series, list[Price]] = {}
        for price in sorted(prices, key=lambda p: p.valid_from):
            series.setdefault(price.series, []).append(price)
        self.currency = next((p[0].currency for p in series.values()), None)
        self._rates = {key: _rates(of) for key, of in series.items()}
        types = [gpu_type for gpu_type, _, _ in series]
        self._only = {key[0]: key for key in series if types.count(key[0]) == 1}

    def series(self, gpu_type: str, region: str, purchase: str) -> Series | None:
        """Which series says the price."""
        for key in ((gpu_type, region, purchase), (gpu_type, "", purchase)):
            if key in self._rates:
                return key
        return self._only.get(gpu_type) if (region, purchase) == NOT_SAID else None

    def rates(self, gpu_type: str, region: str, purchase: str) -> Sequence[Rate]:
        """The times at which its price holds, ascending and apart."""
        key = self.series(gpu_type, region, purchase)
        return () if key is None else self._rates[key]

    def rules(self) -> Iterator[tuple[str, str | None, str, Sequence[Rate]]]:
        """`series` spelled out: (GPU type, region or None for any, purchase, rates). The first that fits
        decides."""
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
        """Millionths per GPU-hour at a time; None: no price."""
        rates = self.rates(gpu_type, region, purchase)
        index = bisect_right(rates, at, key=lambda r: r.start) - 1
        if index < 0:
            return None
        found = rates[index]
        return found.rate_micros if found.end is None or at < found.end else None

    def changes(self, gpu_type: str, region: str, purchase: str, start: int, end: int) -> list[int]:
        """The times within (start, end) at which the rate begins or ceases to hold, ascending."""
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
