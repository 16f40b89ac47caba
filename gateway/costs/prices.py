"""The price book: what a GPU-hour costs, by GPU type, region and purchase model, over time.

Append-only: a price is never edited. One without `valid_to` holds until the next of its series (the same GPU
type, region and purchase model) begins. Rates are decimals of at most six places, kept as integer millionths.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from sqlalchemy import insert, select

from gateway.costs.periods import iso
from gateway.metering.ledger import Ledger
from gateway.metering.schema import prices as table

PURCHASES = ("on_demand", "spot", "reserved")
_LARGEST = Decimal(1_000_000)


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

    @property
    def series(self) -> tuple[str, str, str]:
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
    try:
        rate = Decimal(value)
    except InvalidOperation:
        rate = Decimal("NaN")
    if not rate.is_finite() or not 0 <= rate <= _LARGEST or rate != round(rate, 6):
        raise PriceError(
            "rate_per_gpu_hour",
            f"{value[:40]!r} is not a rate: write a decimal of at most six places, 0 to {_LARGEST}.",
        )
    return int(rate.scaleb(6))


def check(new: Price, book: Iterable[Price]) -> Price | None:
    """The same price, if it stands already. Raises PriceConflictError if `new` would overlap another."""
    for old in book:
        if old.currency != new.currency:
            raise PriceConflictError(f"The price book is in {old.currency}; {new.currency} cannot join it.")
        if old.series != new.series:
            continue
        if old.valid_from == new.valid_from:
            if (old.rate_micros, old.valid_to) == (new.rate_micros, new.valid_to):
                return old
            raise PriceConflictError(
                f"{new.gpu_type} has another price from {iso(old.valid_from)} on: prices are never edited."
            )
        first, second = sorted((old, new), key=lambda p: p.valid_from)
        if first.valid_to is not None and first.valid_to > second.valid_from:
            raise PriceConflictError(
                f"It overlaps the price of {new.gpu_type} that begins {iso(old.valid_from)}."
            )
    return None


class PriceBook:
    """Prices made ready for look-ups by GPU type and time."""

    def __init__(self, prices: Iterable[Price]) -> None:
        series: dict[tuple[str, str, str], list[Price]] = {}
        for price in sorted(prices, key=lambda p: p.valid_from):
            series.setdefault(price.series, []).append(price)
        self.currency = next((p[0].currency for p in series.values()), None)
        self._rates: dict[str, list[Rate]] = {}
        for gpu_type in {key[0] for key in series}:
            chosen = _default_series(gpu_type, sorted(series))
            self._rates[gpu_type] = _rates(series[chosen]) if chosen else []

    def rate(self, gpu_type: str, at: int) -> int | None:
        """Millionths per GPU-hour at a time; None: no price."""
        rates = self._rates.get(gpu_type, [])
        index = bisect_right(rates, at, key=lambda r: r.start) - 1
        if index < 0:
            return None
        found = rates[index]
        return found.rate_micros if found.end is None or at < found.end else None

    def changes(self, gpu_type: str, start: int, end: int) -> list[int]:
        """The times within (start, end) at which the rate begins or ceases to hold."""
        times = {t for rate in self._rates.get(gpu_type, []) for t in (rate.start, rate.end) if t is not None}
        return sorted(t for t in times if start < t < end)


def _default_series(gpu_type: str, keys: Sequence[tuple[str, str, str]]) -> tuple[str, str, str] | None:
    """Engines do not say yet where they stand and how they were bought: on demand and anywhere is meant, or
    the only series that there is. With several others nothing can be chosen, and the price is missing."""
    mine = [key for key in keys if key[0] == gpu_type]
    default = (gpu_type, "", "on_demand")
    if default in mine:
        return default
    return mine[0] if len(mine) == 1 else None


def _rates(prices: Sequence[Price]) -> list[Rate]:
    following = [p.valid_from for p in prices[1:]]
    ends = [*following, None]
    return [
        Rate(p.valid_from, end if p.valid_to is None else p.valid_to, p.rate_micros)
        for p, end in zip(prices, ends, strict=True)
    ]


def list_prices(ledger: Ledger) -> list[Price]:
    """All, by series and time. Raises LedgerUnavailableError."""
    query = select(table).order_by(table.c.gpu_type, table.c.region, table.c.purchase, table.c.valid_from)
    with ledger.read() as connection:
        return [_price(row) for row in connection.execute(query).mappings()]


def add_price(
    ledger: Ledger,
    *,
    gpu_type: str,
    rate: str,
    currency: str,
    purchase: str,
    region: str,
    valid_from: int | None,
    valid_to: int | None,
    now: int,
) -> tuple[Price, bool]:
    """The price, and whether it is new. Without `valid_from` the first of a series holds from the beginning
    of time, so that what ran before it was entered has a cost too; a later one from now on.

    Raises PriceError, PriceConflictError, LedgerUnavailableError."""
    with ledger.write() as connection:
        book = [_price(row) for row in connection.execute(select(table)).mappings()]
        known = [p for p in book if p.series == (gpu_type, region, purchase)]
        start = valid_from if valid_from is not None else now if known else 0
        if valid_to is not None and valid_to <= start:
            raise PriceError("valid_to", f"{iso(valid_to)} is not after {iso(start)}.")
        price = Price(gpu_type, rate_micros(rate), currency, purchase, region, start, valid_to, now)
        same = check(price, book) or _unchanged(price, known, explicit=valid_from is not None)
        if same is not None:
            return same, False
        connection.execute(insert(table), [{name: getattr(price, name) for name in _COLUMNS}])
        return price, True


def _unchanged(price: Price, known: Sequence[Price], *, explicit: bool) -> Price | None:
    """The price that holds already, when somebody says it again without a time."""
    last = max(known, key=lambda p: p.valid_from, default=None)
    if explicit or last is None or last.valid_from > price.valid_from:
        return None
    same = (last.rate_micros, last.valid_to) == (price.rate_micros, price.valid_to)
    return last if same else None


_COLUMNS = (
    "gpu_type", "rate_micros", "currency", "purchase", "region", "valid_from", "valid_to", "recorded_at",
)  # fmt: skip  # one name a line says no more


def _price(row: Any) -> Price:
    return Price(**{name: row[name] for name in _COLUMNS})
