"""Detects that a large part of the registry was removed within minutes by ordinary changes.

A data loss shows up as a regression (`adapters.store.continuity`). This detects a script that removes too
much, or hundreds of revoked keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

WINDOW_SECONDS: Final = 900.0
SAMPLE_SECONDS: Final = 15.0
COUNT_SECONDS: Final = 1.0
"""Minimum time between counts: counting a large registry takes milliseconds, and there are many callers."""
LARGE: Final = 0.25
"""Fraction of the previous count."""
FEWEST: Final = 5
"""Minimum number removed, because one object is a large part of a small registry."""


class MassRemovalWatch:
    """Mutable state: the highest counts in each part of the window, and the last result."""

    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        """`count` returns the number of objects by kind."""
        self._count = count
        self._counted = float("-inf")
        self._said = ""
        self._samples: deque[tuple[float, dict[str, int]]] = deque()

    def check(self, now: float) -> str:
        """Describe what was removed, as a sentence; empty if nothing. `now`: monotonic seconds."""
        if now - self._counted >= COUNT_SECONDS:
            self._counted, self._said = now, self._of(self._count(), now)
        return self._said

    def _of(self, counts: Mapping[str, int], now: float) -> str:
        samples = self._samples
        while samples and now - samples[0][0] > WINDOW_SECONDS:
            samples.popleft()
        if not samples or now - samples[-1][0] >= SAMPLE_SECONDS:
            samples.append((now, dict(counts)))
        most = samples[-1][1]
        most.update({what: max(count, most.get(what, 0)) for what, count in counts.items()})
        gone = []
        for what, count in counts.items():
            before = max(then.get(what, 0) for _, then in samples)
            if before - count >= max(FEWEST, LARGE * before):
                gone.append(f"{before - count} of {before} {what}")
        return f"{', '.join(gone)} were removed within {WINDOW_SECONDS / 60:.0f} minutes." if gone else ""
