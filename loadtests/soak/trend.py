"""Does it grow? Pure.

The slope is Theil and Sen's, the median of the slopes between all pairs of points, which a few outliers do
not move. What it comes to over the time looked at counts as growth when it exceeds both what is allowed and
three times the noise: the median distance of the points from their line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

WARM_UP: Final = 0.3
"""Share of the time that is not looked at: caches fill, pools reach their size."""
MOST: Final = 300
"""Points that a slope is taken from, evenly spread: the pairs of more would take long."""
NOISE: Final = 3.0

Point = tuple[float, float]
"""Seconds, and what was seen then."""


@dataclass(frozen=True, slots=True)
class Trend:
    first: float
    """Medians of the first and the last fifth of what was looked at."""
    last: float
    growth: float
    """Over the whole time looked at, by the slope."""
    hourly: float
    noise: float
    allowed: float | None
    """None: it may grow."""

    @property
    def grows(self) -> bool:
        return self.allowed is not None and self.growth > max(self.allowed, NOISE * self.noise)


def trend(points: Sequence[Point], allowed: float | None) -> Trend:
    """`allowed`: how much it may grow over the time looked at, which is what follows the warm-up."""
    if len(points) < 3:
        raise ValueError("a trend needs three points")
    begin = points[0][0] + WARM_UP * (points[-1][0] - points[0][0])
    kept = [point for point in points if point[0] >= begin]
    step = -(-len(kept) // MOST)
    thin = kept[::step]
    slope = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(thin, 2) if b[0] > a[0])
    level = median(value - slope * at for at, value in thin)
    noise = median(abs(value - slope * at - level) for at, value in thin)
    fifth = max(1, len(kept) // 5)
    return Trend(
        first=median(value for _, value in kept[:fifth]),
        last=median(value for _, value in kept[-fifth:]),
        growth=slope * (kept[-1][0] - kept[0][0]),
        hourly=slope * 3600,
        noise=noise,
        allowed=allowed,
    )
