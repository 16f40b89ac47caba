"""The forecast of a month's cost from its days so far. Pure, in integers.

The days to come are expected to cost what days cost lately: from two weeks of history on, the mean of the
same weekday, otherwise the mean of all days. The interval is the prediction interval for a sum of days that
vary around those means independently, as in any textbook on linear models (for example Montgomery, Peck and
Vining, *Introduction to Linear Regression Analysis*, 3.5):

    variance = s² · Σ (n + n² / m)

with s² the variance of the history around its means, and for each mean n days to come and m days of history.
Its width is that variance's root times Student's t. It knows nothing of growth, holidays or new customers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Final, Literal

from gateway.costs.periods import Period
from gateway.units import DAY, Amount

HISTORY_DAYS: Final = 28
"""Complete days that a forecast looks back on: each weekday four times."""
_WEEKLY: Final = 14
"""From so many days on, each weekday has its own mean."""
_LEAST: Final = 2
"""Days without which nothing is forecast."""

Confidence = Literal[80, 95]
# Student's t, two-sided, in thousandths, for 1, 2, … degrees of freedom; last, the normal distribution's.
_T: Final[Mapping[int, Sequence[int]]] = {
    80: (
        3078, 1886, 1638, 1533, 1476, 1440, 1415, 1397, 1383, 1372, 1363, 1356, 1350, 1345, 1341,
        1337, 1333, 1330, 1328, 1325, 1323, 1321, 1319, 1318, 1316, 1315, 1314, 1313, 1311, 1310, 1282,
    ),
    95: (
        12706, 4303, 3182, 2776, 2571, 2447, 2365, 2306, 2262, 2228, 2201, 2179, 2160, 2145, 2131,
        2120, 2110, 2101, 2093, 2086, 2080, 2074, 2069, 2064, 2060, 2056, 2052, 2048, 2045, 2042, 1960,
    ),
}  # fmt: skip  # a table


@dataclass(frozen=True, slots=True)
class Forecast:
    so_far: Amount
    """Cost of the month until now."""
    expected: Amount | None
    """Cost at the month's end; None: too few days are known."""
    low: Amount | None
    high: Amount | None
    days_known: int
    """Complete days of history."""
    method: Literal["actual", "weekday", "daily", "none"]
    """How the days to come were estimated; `actual`: none are to come."""


def forecast(costs: Mapping[int, int], month: Period, today: int, confidence: Confidence = 80) -> Forecast:
    """`costs`: by the start of the day, also of days before the month. `today`: start of the first day that
    is not complete; its cost so far counts if it exceeds what is expected of it."""
    so_far = Amount(
        sum(cost for day, cost in costs.items() if month.start <= day < min(today + 1, month.end))
    )
    known = _history(costs, today)
    coming = range(max(today, month.start), month.end, DAY)
    if not coming:
        return Forecast(so_far, so_far, so_far, so_far, len(known), "actual")
    if len(known) < _LEAST:
        return Forecast(so_far, None, None, None, len(known), "none")
    weekly = len(known) >= _WEEKLY
    means = _Means(known, weekly=weekly)
    done = sum(cost for day, cost in costs.items() if month.start <= day < min(today, month.end))
    first = max(Fraction(costs.get(coming[0], 0)), means.of(coming[0]))
    expected = Amount(round(sum((means.of(day) for day in coming[1:]), done + first)))
    width = isqrt(int(means.variance(coming))) * means.t(confidence) // 1000
    low, high = Amount(max(so_far, expected - width)), Amount(expected + width)
    return Forecast(so_far, expected, low, high, len(known), "weekday" if weekly else "daily")


def _history(costs: Mapping[int, int], today: int) -> dict[int, int]:
    """The last complete days, from the first that cost anything."""
    window = range(today - HISTORY_DAYS * DAY, today, DAY)
    begun = min((day for day in window if costs.get(day)), default=today)
    return {day: costs.get(day, 0) for day in window if day >= begun}


class _Means:
    """Mean costs of days, of each weekday or of all."""

    def __init__(self, known: Mapping[int, int], *, weekly: bool) -> None:
        self._weekly = weekly
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for day, cost in known.items():
            groups[self._group(day)].append(cost)
        self._counts = {group: len(own) for group, own in groups.items()}
        self._means = {group: Fraction(sum(own), len(own)) for group, own in groups.items()}
        self._freedom = len(known) - len(groups)
        rests = [cost - self.of(day) for day, cost in known.items()]
        self._spread = sum((rest * rest for rest in rests), Fraction(0)) / self._freedom

    def of(self, day: int) -> Fraction:
        return self._means[self._group(day)]

    def variance(self, coming: Iterable[int]) -> Fraction:
        """The variance of the sum of the days to come."""
        days = Counter(map(self._group, coming))
        return self._spread * sum(n + Fraction(n * n, self._counts[group]) for group, n in days.items())

    def t(self, confidence: Confidence) -> int:
        table = _T[confidence]
        return table[min(self._freedom, len(table)) - 1]

    def _group(self, day: int) -> int:
        return day // DAY % 7 if self._weekly else 0
