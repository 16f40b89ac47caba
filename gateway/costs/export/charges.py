"""Cost lines with what a FOCUS row needs besides: the charge period, and the list price.

The list price of a GPU-hour is the on-demand price of the same GPU type and region at the start of the hour;
without one, the price itself. So a row of spot or reserved capacity shows what it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from gateway.costs.cost_lines import SUMS, CostLine
from gateway.costs.periods import Period, instant, iso
from gateway.costs.prices.book import PriceBook
from gateway.units import DAY, HOUR


@dataclass(frozen=True, slots=True)
class UnitPrices:
    """Millionths of the currency per GPU-hour."""

    purchase: str
    paid: int
    list: int

    @property
    def contracted(self) -> int:
        """With negotiated discounts (a spot price counts as one), without commitment discounts."""
        return self.list if self.purchase == "reserved" else self.paid


@dataclass(frozen=True, slots=True)
class Covering:
    """A recorded commitment that pays for a charge."""

    id: int
    description: str
    effective: int
    """The charge's part of what the commitment costs, in 10**-15 of the currency."""


@dataclass(frozen=True, slots=True)
class Charge:
    line: CostLine
    start: str
    end: str
    prices: UnitPrices
    covering: Covering | None = None


ListPrice = Callable[[str, str, int], int | None]
"""GPU type, region, time → the on-demand price; None: there is none."""


def list_price_of(book: PriceBook) -> ListPrice:
    def of(gpu_type: str, region: str, time: int) -> int | None:
        series = book.series(gpu_type, region, "on_demand")
        if series is None or series[2] != "on_demand":
            return None
        return book.rate(gpu_type, region, "on_demand", time)

    return of


def unit_prices(
    gpu_type: str, region: str, purchase: str, rate: int | None, time: int, listed: ListPrice
) -> UnitPrices:
    """A file with missing prices is refused before."""
    assert rate is not None
    other = None if purchase == "on_demand" else listed(gpu_type, region, time)
    return UnitPrices(purchase, rate, rate if other is None else other)


def hourly(lines: Iterable[CostLine], listed: ListPrice) -> Iterator[Charge]:
    """`lines`: whose first key is the hour. What reached no engine costs nothing, and has no row."""
    time, start, end = 0, "", ""
    for line in lines:
        if line.bucket == "rejected":
            continue
        if line.keys[0] != start:
            start = line.keys[0]
            time = instant("hour", start)
            end = iso(time + HOUR)
        prices = unit_prices(*line.series, line.rate_micros, time, listed)
        yield Charge(line, start, end, prices)


def daily(charges: Iterable[Charge]) -> Iterator[Charge]:
    """The same by day, UTC. Memory use is proportional to what is distinct in one day."""
    for day, of_day in groupby(charges, key=lambda charge: charge.start[:10]):
        start = instant("day", day)
        same: dict[tuple[object, ...], Charge] = {}
        for charge in of_day:
            line = charge.line
            by = charge.covering
            key = (
                *line.keys[1:], line.bucket, line.calibration, line.correction, line.task, charge.prices,
                by and by.id,
            )  # fmt: skip  # one name a line says no more
            before = same.get(key)
            if by is not None and before is not None and before.covering is not None:
                by = replace(by, effective=by.effective + before.covering.effective)
            sums = {
                name: getattr(line, name) + (0 if before is None else getattr(before.line, name))
                for name in SUMS
            }
            total = replace(line, keys=(iso(start), *line.keys[1:]), **sums)
            same[key] = Charge(total, iso(start), iso(start + DAY), charge.prices, by)
        # As the hours are ordered, so that the rows of an engine stay together.
        yield from sorted(same.values(), key=lambda charge: charge.line.keys)


def within(period: Period) -> dict[str, str]:
    return {"ChargePeriodStart": iso(period.start), "ChargePeriodEnd": iso(period.end)}
