"""Detects growth in a time series. Pure.

The slope is the Theil-Sen estimator (Sen 1968): the median of the slopes between all pairs of points, which
is robust to outliers. A series grows if the slope over the observed time exceeds both the allowance and three
times the noise, which is the median distance of the points from the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

WARM_UP: Final = 0.3
"""Share of the time that is ignored as warm-up, while caches and pools fill."""
MOST: Final = 300
"""Number of evenly spread points used for the slope; all pairs of more would take too long."""
NOISE: Final = 3.0

Point = tuple[float, float]
"""Time in seconds, and value."""


@dataclass(frozen=True, slots=True)
class Trend:
    first: float
    """Medians of the first and the last fifth of the observed time."""
    last: float
    growth: float
    """Growth over the observed time, by the slope."""
    hourly: float
    noise: float
    allowed: float | None
    """None if it may grow without limit."""

    @property
    def grows(self) -> bool:
        return self.allowed is not None and self.growth > max(self.allowed, NOISE * self.noise)


def trend(points: Sequence[Point], allowed: float | None) -> Trend:
    """`allowed`: growth allowed over the observed time, which follows the warm-up."""
    if len(points) < 3:
        raise ValueError("a trend needs three points")
    begin = points[0][0] + WARM_UP * (points[-1][0] - points[0][0])
    kept = [point for point in points if point[0] >= begin]
    step = -(-len(kept) // MOST)
    thin = kept[::step]
    slope = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(thin, 2) if b[0] > a[0])
    level = median(value - slope * seconds for seconds, value in thin)
    noise = median(abs(value - slope * seconds - level) for seconds, value in thin)
    fifth = max(1, len(kept) // 5)
    return Trend(
        first=median(value for _, value in kept[:fifth]),
        last=median(value for _, value in kept[-fifth:]),
        growth=slope * (kept[-1][0] - kept[0][0]),
        hourly=slope * 3600,
        noise=noise,
        allowed=allowed,
    )
