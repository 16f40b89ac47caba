"""The virtual clock and the events to come."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Events:
    """Calls functions in the order of their times, and those of one time in the order of `at`."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds. Mutable: moves on with each event."""
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._added = 0

    def __repr__(self) -> str:
        return f"<Events {self.now:.3f} s, {len(self._heap)} to come>"

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time: float, call: Callable[[Any], None], argument: Any = None) -> None:
        self._added += 1
        heapq.heappush(self._heap, (time, self._added, call, argument))

    def until(self, time: float) -> None:
        """Run every event up to and including that time."""
        heap = self._heap
        while heap and heap[0][0] <= time:
            self.now, _, call, argument = heapq.heappop(heap)
            call(argument)
        self.now = max(self.now, time)
