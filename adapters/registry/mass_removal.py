"""Whether a large part of what a registry held has gone within minutes, by changes like any other.

A loss shows as a regression (`adapters.store.continuity`); this is for the script that removes too much, and
for keys revoked by the hundred.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

WINDOW_SECONDS: Final = 900.0
SAMPLE_SECONDS: Final = 15.0
COUNT_SECONDS: Final = 1.0
"""Counting a large registry takes milliseconds, and many ask."""
LARGE: Final = 0.25
"""Of what there was."""
FEWEST: Final = 5
"""So many must have gone: of a small registry, one is a large part."""


class MassRemovalWatch:
    """State: the most that there was, for each part of the window; what was said last."""

    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        """`count`: what there is, by what it is called."""
        self._count = count
        self._counted = float("-inf")
        self._said = ""
        self._samples: deque[tuple[float, dict[str, int]]] = deque()

    def look(self, now: float) -> str:
        """What has shrunk, in a sentence; empty: nothing. `now`: seconds of a monotonic clock."""
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
        return f"Within {WINDOW_SECONDS / 60:.0f} minutes went {', '.join(gone)}." if gone else ""
