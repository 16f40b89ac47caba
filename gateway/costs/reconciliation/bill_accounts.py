"""Groups the lines of a bill with the engines that they are compared with.

By engine, if the bill names resources like engines. If it names none so, all engines of a GPU type, region
and purchase model together. A single resource without an engine of its name is a group of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from gateway.costs.periods import Period
from gateway.costs.prices.book import NOT_SAID, Series
from gateway.costs.reconciliation.bill_files import BillLine
from gateway.units import HOUR


@dataclass(frozen=True, slots=True)
class Ours:
    """What Florin observed of an engine in a period."""

    engine: str
    gpu_type: str
    region: str
    purchase: str
    gpu_count: int
    hours: Mapping[int, int]
    """Start of the hour → nano-GPU-hours provisioned."""
    attributed: int = 0
    """The part attributed to tenants' requests."""
    cost: int = 0
    """Cost of all, in 10**-15 of the price book's currency; unpriced time counts as 0."""


@dataclass(slots=True)
class Side:
    """The two sides of one account. Mutable while it is collected."""

    name: str
    series: Series
    lines: list[BillLine] = field(default_factory=list)
    ours: list[Ours] = field(default_factory=list)
    known: bool = True
    """Whether an engine of that name was ever registered."""


def sides(
    bill: Iterable[BillLine], ours: Sequence[Ours], known: frozenset[str], within: Period
) -> list[Side]:
    """`bill`: the lines that overlap `within`, of which only the overlapping part counts. `known`: the names
    of all engines ever registered."""
    lines = [part for line in bill if (part := _clip(line, within)) is not None]
    speaks = any(line.resource in known for line in lines)  # the bill names resources like engines
    by_name: dict[str, Side] = {}
    pooled: dict[Series, Side] = {}
    for line in lines:
        series = (line.gpu_type, line.region, line.purchase)
        if line.resource and speaks:
            side = by_name.setdefault(
                line.resource, Side(line.resource, series, known=line.resource in known)
            )
        else:
            side = pooled.setdefault(series, Side("", series))
        side.lines.append(line)
    for own in ours:
        _place(own, by_name, pooled)
    return [*(by_name[name] for name in sorted(by_name)), *(pooled[key] for key in sorted(pooled))]


def _place(own: Ours, by_name: dict[str, Side], pooled: Mapping[Series, Side]) -> None:
    series = (own.gpu_type, own.region, own.purchase)
    pool = None if own.engine in by_name else _pool(series, pooled)
    if pool is not None:
        pooled[pool].ours.append(own)
        return
    side = by_name.setdefault(own.engine, Side(own.engine, series))
    side.series = series
    side.ours.append(own)


def _pool(series: Series, pooled: Mapping[Series, Side]) -> Series | None:
    """The pool of the bill that an engine belongs to; without region and purchase model, the only pool of its
    GPU type."""
    if series in pooled:
        return series
    alike = [key for key in pooled if key[0] == series[0]]
    return alike[0] if len(alike) == 1 and series[1:] == NOT_SAID else None


def _clip(line: BillLine, within: Period) -> BillLine | None:
    """The part of a line within a period, in proportion to time."""
    start, end = max(line.start, within.start), min(line.end, within.end)
    if start >= end:
        return None
    if (start, end) == (line.start, line.end):
        return line
    share = Fraction(end - start, line.end - line.start)
    # Measured from the line's start, so that the parts in several months sum to the line.
    until, since = (Fraction(t - line.start, line.end - line.start) for t in (end, start))
    nano = int(line.nano_gpu_hours * until) - int(line.nano_gpu_hours * since)
    cost = str(Fraction(line.cost) * share)
    return replace(line, start=start, end=end, nano_gpu_hours=nano, cost=cost)


def hours_of(line: BillLine) -> range:
    """The starts of the hours that a line overlaps."""
    return range(line.start - line.start % HOUR, line.end, HOUR)
