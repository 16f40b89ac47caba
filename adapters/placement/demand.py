"""How much of the engines each version asks for, as the leader samples it."""

from __future__ import annotations

from collections.abc import Mapping

HALF_LIFE = 3.0
"""Seconds after which a sample counts half. Growth follows the demand this quickly."""
WINDOW = 60.0
"""A peak is remembered for one to two windows (seconds), for shrinking."""
_NOTHING = 0.01
"""Requests in flight below which a version is forgotten."""


class Demand:
    """Exponentially weighted means of requests in flight, and their recent peaks.

    Requests in flight are what all workers' leases add up to, so no worker has to report anything else: their
    mean is the rate of requests times the time that each takes.
    """

    def __init__(self, *, half_life: float = HALF_LIFE, window: float = WINDOW) -> None:
        self._half_life, self._window = half_life, window
        self._mean: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._earlier: dict[str, float] = {}
        """Peaks of this window and of the one before."""
        self._began: float | None = None
        self._turned = 0.0
        self._last = 0.0

    def __repr__(self) -> str:
        return f"<Demand of {len(self._mean)} versions>"

    def sample(self, in_flight: Mapping[str, float], now: float) -> None:
        """`in_flight`: requests by version; `now`: monotonic seconds."""
        if self._began is None:  # there is no past to weigh it against
            self._began = self._turned = now
            weight = 1.0
        else:
            weight = 1.0 - 0.5 ** ((now - self._last) / self._half_life)
        self._last = now
        if now - self._turned >= self._window:
            self._earlier, self._peaks, self._turned = self._peaks, {}, now
        for version in self._mean.keys() | in_flight.keys():
            mean = self._mean.get(version, 0.0)
            mean += weight * (in_flight.get(version, 0.0) - mean)
            if mean < _NOTHING:
                self._mean.pop(version, None)
                continue
            self._mean[version] = mean
            self._peaks[version] = max(mean, self._peaks.get(version, 0.0))

    @property
    def knows_the_past(self) -> bool:
        """Whether a whole window has been seen, so that a version without a peak was idle."""
        return self._began is not None and self._last - self._began >= self._window

    def versions(self) -> set[str]:
        """Those that have been called lately."""
        return set(self._mean)

    def mean(self, version: str) -> float:
        return self._mean.get(version, 0.0)

    def peak(self, version: str) -> float:
        """The highest mean of the last one to two windows."""
        return max(self._peaks.get(version, 0.0), self._earlier.get(version, 0.0))
