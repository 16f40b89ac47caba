"""Loads that failed a moment ago, which are answered from memory instead of being tried again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FIRST_BACKOFF: Final = 1.0
MAX_BACKOFF: Final = 30.0
"""Seconds during which a failed load is answered from memory; doubles with each failure."""

Key = tuple[str, str]
"""(version, the engine of a replica or '')."""


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    until: float
    backoff: float
    count: int
    """Consecutive failures in this worker."""


class RecentFailures:
    """Mutable; on one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[Key, _Failure] = {}

    def reason(self, key: Key) -> str | None:
        """Why the load must not be tried now; None: it may be."""
        failure = self._last.get(key)
        return failure.reason if failure and self._clock() < failure.until else None

    def note(self, key: Key, error: object) -> int:
        """The load has failed. Returns the number of consecutive failures."""
        last = self._last.get(key)
        backoff = min(MAX_BACKOFF, last.backoff * 2) if last else FIRST_BACKOFF
        count = last.count + 1 if last else 1
        self._last[key] = _Failure(str(error), self._clock() + backoff, backoff, count)
        return count

    def forget(self, key: Key) -> None:
        """The load has succeeded."""
        self._last.pop(key, None)
