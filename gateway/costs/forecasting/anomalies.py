"""Anomalies of cost: an adapter or tenant that costs several times its habit, and an engine that idles. Pure.

The habit is the median cost of the last two weeks' complete days: one odd day does not move it. Today counts
as soon as its cost so far is beyond the bound, since it can only grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import Final, Literal

from gateway.units import DAY, NANO, NOTHING, Amount

HABIT_DAYS: Final = 14
"""Complete days before the day in question."""
LEAST_DAYS: Final = 5
"""Days with cost among them, without which there is no habit."""

LEAST_IDLE: Final = 6 * NANO
"""Nano-GPU-hours on a day, below which an engine was hardly there: an autoscaler's, for example."""

Kind = Literal["tenant", "adapter", "engine"]


@dataclass(frozen=True, slots=True)
class Bounds:
    factor: Fraction = Fraction(3)
    """How many times the habit is an anomaly."""
    least_percent: Fraction = Fraction(1)
    """Percent of what everything cost on the habitual day: anything that costs less is not worth a look."""
    idle_percent: Fraction = Fraction(95)
    """An engine that is idle for this part of its provisioned time on a day idles."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: Kind
    subject: str
    """The tenant, adapter (`tenant/name`) or engine."""
    tenant: str
    """Empty for an engine."""
    since: int
    """Start of the first day of the unbroken run that `day` ends."""
    day: int
    cost: Amount
    """On that day; of an engine: of its idle time."""
    habit: Amount | None
    """The median day's cost; None for an engine."""
    ratio: Fraction
    """Cost by habit; of an engine: idle by provisioned time."""
    by_card: bool = False
    """Whether cost and habit are what the tenant is charged by its rate card."""


def spikes(
    kind: Literal["tenant", "adapter"],
    costs: Mapping[str, Mapping[int, int]],
    everything: Mapping[int, int],
    today: int,
    bounds: Bounds = Bounds(),  # frozen
) -> Iterator[Anomaly]:
    """Whose cost is beyond its habit, yesterday or today so far. `costs`: by subject and day; `everything`:
    what everything cost. A day without a habit before it is never an anomaly."""
    floor = bounds.least_percent / 100 * _median(everything, today)
    for subject, series in sorted(costs.items()):
        day = next((d for d in (today, today - DAY) if _beyond(series, d, floor, bounds)), None)
        if day is None:
            continue
        since = day
        while since - DAY > day - HABIT_DAYS * DAY and _beyond(series, since - DAY, floor, bounds):
            since -= DAY
        habit = _median(series, day)
        tenant, cost = subject.partition("/")[0], Amount(series[day])
        yield Anomaly(kind, subject, tenant, since, day, cost, Amount(round(habit)), cost / habit)


def idlers(
    engines: Mapping[str, Mapping[int, tuple[int, int, Amount]]],
    today: int,
    bounds: Bounds = Bounds(),  # frozen
) -> Iterator[Anomaly]:
    """Engines that idled yesterday. `engines`: by name and day, (idle nano-GPU-hours, all nano-GPU-hours,
    cost of the idle ones)."""
    for engine, days in sorted(engines.items()):
        day = today - DAY
        if not _idles(days, day, bounds):
            continue
        since = day
        while _idles(days, since - DAY, bounds):
            since -= DAY
        idle, provisioned, cost = days[day]
        yield Anomaly("engine", engine, "", since, day, cost, None, Fraction(idle, provisioned))


def _beyond(series: Mapping[int, int], day: int, floor: Fraction, bounds: Bounds) -> bool:
    cost = series.get(day, 0)
    if cost < floor:  # most series: their median need not be known
        return False
    used = sum(1 for d in _before(day) if series.get(d))
    if used < LEAST_DAYS:
        return False
    habit = _median(series, day)
    return habit > 0 and cost >= bounds.factor * habit and cost - habit >= floor


def _median(series: Mapping[int, int], day: int) -> Fraction:
    """The median of the days before `day`, from the first that cost anything."""
    begun = min((d for d in _before(day) if series.get(d)), default=day)
    known = [Fraction(series.get(d, 0)) for d in _before(day) if d >= begun]
    return median(known) if known else Fraction(0)


def _before(day: int) -> range:
    return range(day - HABIT_DAYS * DAY, day, DAY)


def _idles(days: Mapping[int, tuple[int, int, Amount]], day: int, bounds: Bounds) -> bool:
    idle, provisioned, _ = days.get(day, (0, 0, NOTHING))
    return provisioned >= LEAST_IDLE and idle * 100 >= provisioned * bounds.idle_percent
