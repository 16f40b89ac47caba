"""The price book: what a GPU-hour costs over time, by GPU type, region and purchase model.

Append-only: a price is never edited. A correction is a price that supersedes another, which is kept but no
longer applies. A price without `valid_to` is valid until the next price without one of its series (the same
GPU type, region and purchase model); prices with `valid_to` interrupt it, and it resumes when they end. GPU
types are the same in any case: `h100` is `H100`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.costs.prices.price import (
    PURCHASES,
    Price,
    PriceConflictError,
    PriceError,
    Series,
    as_fast,
    check,
    rate_micros,
    speedup_millis,
)
from gateway.units import DAY, Micros

__all__ = [
    "NOT_SAID",
    "PURCHASES",
    "Price",
    "PriceBook",
    "PriceConflictError",
    "PriceError",
    "Rate",
    "Rule",
    "Series",
    "as_fast",
    "check",
    "rate_micros",
    "speedup_millis",
]

NOT_SAID = ("", "on_demand")
"""Region and purchase model of an engine that was registered without them."""
_ELSEWHERE = "\0"
"""A region that has no price of its own."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A price and the time in which it applies."""

    start: int
    end: int | None
    rate_micros: Micros


class Rule(NamedTuple):
    """Which engines a series prices."""

    gpu_type: str
    any_case: bool
    """Whether other spellings of the GPU type, like `h100` for `H100`, are priced too."""
    region: str | None
    """None: any."""
    purchase: str
    rates: Sequence[Rate]


class PriceBook:
    """Prices in force, indexed for look-ups by engine attributes and time.

    An engine-hour is priced by the series of its GPU type, region and purchase model, and at times that this
    does not cover by the series of that purchase model without a region. An engine registered without region
    and purchase model uses the only series of its GPU type; if there are several, the price is missing.

    A GPU type is found in any case, unless the book has it in several."""

    def __init__(self, prices: Iterable[Price]) -> None:
        series: dict[Series, list[Price]] = {}
        for price in sorted(prices, key=lambda p: p.valid_from):
            series.setdefault(price.series, []).append(price)
        self.currency = next((p[0].currency for p in series.values()), None)
        rates = {key: _series_rates(own) for key, own in series.items()}
        self._rates = {
            (name, region, purchase): _filled(own, rates.get((name, "", purchase), ())) if region else own
            for (name, region, purchase), own in rates.items()
        }
        types = [gpu_type for gpu_type, _, _ in series]
        self._only = {key[0]: key for key in series if types.count(key[0]) == 1}
        spellings: defaultdict[str, set[str]] = defaultdict(set)
        for gpu_type in types:
            spellings[gpu_type.lower()].add(gpu_type)
        self._spelling = {lower: min(names) for lower, names in spellings.items() if len(names) == 1}

    def spelling(self, gpu_type: str) -> str:
        """The GPU type as the book spells it; unchanged if the book does not have it."""
        return self._spelling.get(gpu_type.lower(), gpu_type)

    def series(self, gpu_type: str, region: str, purchase: str) -> Series | None:
        """The series that prices such an engine; None: no price."""
        gpu_type = self.spelling(gpu_type)
        for key in ((gpu_type, region, purchase), (gpu_type, "", purchase)):
            if key in self._rates:
                return key
        return self._only.get(gpu_type) if (region, purchase) == NOT_SAID else None

    def rates(self, gpu_type: str, region: str, purchase: str) -> Sequence[Rate]:
        """The rates that apply to it, ascending and disjoint."""
        key = self.series(gpu_type, region, purchase)
        return () if key is None else self._rates[key]

    def rules(self) -> Iterator[Rule]:
        """The rules of `series` in order; the first match applies."""

        def rule(gpu_type: str, region: str | None, purchase: str, rates: Sequence[Rate]) -> Rule:
            return Rule(gpu_type, gpu_type.lower() in self._spelling, region, purchase, rates)

        for (gpu_type, region, purchase), rates in self._rates.items():
            if region:
                yield rule(gpu_type, region, purchase, rates)
        for (gpu_type, region, purchase), rates in self._rates.items():
            if not region:
                yield rule(gpu_type, None, purchase, rates)
        for gpu_type, key in self._only.items():
            if key[1:] != NOT_SAID:
                yield rule(gpu_type, *NOT_SAID, self._rates[key])

    def rate(self, gpu_type: str, region: str, purchase: str, time: int) -> Micros | None:
        """Per GPU-hour at the time `time`; None: no price."""
        rates = self.rates(gpu_type, region, purchase)
        index = bisect_right(rates, time, key=lambda r: r.start) - 1
        if index < 0:
            return None
        last = rates[index]
        return last.rate_micros if last.end is None or time < last.end else None

    def changes(self, gpu_type: str, region: str, purchase: str, start: int, end: int) -> list[int]:
        """The times in (start, end) at which a rate begins or ends, ascending."""
        rates = self.rates(gpu_type, region, purchase)
        times = {t for rate in rates for t in (rate.start, rate.end) if t is not None}
        return sorted(t for t in times if start < t < end)

    def gaps(self, series: Series, since: int) -> list[tuple[int, int | None]]:
        """The times from `since` on at which engines of a series have no price. None: without an end."""
        gaps: list[tuple[int, int | None]] = []
        reached: int | None = since
        for rate in self.rates(*series):
            if reached is not None and reached < rate.start:
                gaps.append((reached, rate.start))
            reached = None if reached is None or rate.end is None else max(reached, rate.end)
        return gaps if reached is None else [*gaps, (reached, None)]

    def kinds(self, gpu_type: str) -> Iterator[tuple[str, str]]:
        """Every (region, purchase model) of an engine that the book may price differently."""
        yield NOT_SAID
        for name, region, purchase in self._rates:
            if name == self.spelling(gpu_type):
                yield from ((region, purchase), ("", purchase), (_ELSEWHERE, purchase))

    def cut_days(self) -> set[int]:
        """The starts of the days, UTC, within which some rate begins or ends."""
        times = (t for rates in self._rates.values() for rate in rates for t in (rate.start, rate.end))
        return {t - t % DAY for t in times if t is not None and t % DAY}

    def broken_hours(self, gpu_type: str, hour: int) -> set[int]:
        """The starts of the hours, `hour` microseconds long, within which some rate of a GPU type begins or
        ends."""
        spelling = self.spelling(gpu_type)
        times = {
            t
            for key, rates in self._rates.items()
            if key[0] == spelling
            for rate in rates
            for t in (rate.start, rate.end)
            if t is not None and t % hour
        }
        return {t - t % hour for t in times}


def _series_rates(prices: Sequence[Price]) -> list[Rate]:
    """The rates of one series, whose prices are in order and overlap only where one without an end is
    interrupted."""
    rates: list[Rate] = []
    standing: Price | None = None
    following = [*(p.valid_from for p in prices[1:]), None]
    for price, after in zip(prices, following, strict=True):
        end = after if price.valid_to is None else price.valid_to
        rates.append(Rate(price.valid_from, end, price.rate_micros))
        if price.valid_to is None:
            standing = price
        elif standing is not None and end != after:
            rates.append(Rate(price.valid_to, after, standing.rate_micros))
    return rates


def _filled(own: Sequence[Rate], others: Sequence[Rate]) -> list[Rate]:
    """`own` rates, and `others` where they leave gaps. Both are ascending and disjoint."""
    times = sorted({t for rate in (*own, *others) for t in (rate.start, rate.end) if t is not None})
    filled: list[Rate] = []
    before: Rate | None = None
    for start, end, of_own, other in zip(
        times, [*times[1:], None], _at_each(own, times), _at_each(others, times), strict=True
    ):
        rate = of_own or other
        if rate is None:
            continue
        since = start
        if rate is before and filled[-1].end == start:  # the other series changes, which is no change here
            since = filled.pop().start
        filled.append(Rate(since, end, rate.rate_micros))
        before = rate
    return filled


def _at_each(rates: Sequence[Rate], times: Iterable[int]) -> Iterator[Rate | None]:
    """The rate at each of some ascending times."""
    index = 0
    for time in times:
        while index < len(rates) and (end := rates[index].end) is not None and end <= time:
            index += 1
        rate = rates[index] if index < len(rates) else None
        yield rate if rate is not None and rate.start <= time else None
