"""How much is asked for, now and at its peak."""

from __future__ import annotations

from collections.abc import Mapping

_NOTHING = 0.01
"""Demand below which it is forgotten."""


class Demand:
    """Exponentially weighted means of demands by name, and their recent peaks."""

    def __init__(self, *, half_life: float, window: float) -> None:
        """`half_life`: seconds after which a sample counts half; a peak is remembered for one to two
        `window`s of seconds."""
        self._half_life, self._window = half_life, window
        self._mean: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._earlier: dict[str, float] = {}
        """Peaks of this window and of the one before."""
        self._began: float | None = None
        self._turned = 0.0
        self._last = 0.0

    def __repr__(self) -> str:
        return f"<Demand {self._mean}>"

    def sample(self, demands: Mapping[str, float], now: float) -> None:
        """`now`: monotonic seconds."""
        if self._began is None:  # there is no past to weigh it against
            self._began = self._turned = now
            weight = 1.0
        else:
            weight = 1.0 - 0.5 ** ((now - self._last) / self._half_life)
        self._last = now
        if now - self._turned >= self._window:
            self._earlier, self._peaks, self._turned = self._peaks, {}, now
        for name in self._mean.keys() | demands.keys():
            mean = self._mean.get(name, 0.0)
            mean += weight * (demands.get(name, 0.0) - mean)
            if mean < _NOTHING:
                self._mean.pop(name, None)
                continue
            self._mean[name] = mean
            self._peaks[name] = max(mean, self._peaks.get(name, 0.0))

    @property
    def knows_the_past(self) -> bool:
        """Whether a whole window has been seen, so that what has no peak was idle."""
        return self._began is not None and self._last - self._began >= self._window

    def mean(self, name: str) -> float:
        return self._mean.get(name, 0.0)

    def peak(self, name: str) -> float:
        """The highest mean of the last one to two windows."""
        return max(self._peaks.get(name, 0.0), self._earlier.get(name, 0.0))
