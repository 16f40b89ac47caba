"""Many timers for the price of few: those that are due at nearly the same time go off together."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

EARLY: Final = 0.002
"""Seconds by which a timer may go off early, because event loops count milliseconds."""


class TimerWheel(Generic[T]):
    """Calls `on_due` with each item, at most `width` seconds after its time. An item has one time: the last
    that it was given. Mutable, and used on one event loop only; `on_due` must not raise."""

    def __init__(self, on_due: Callable[[T], None], width: float) -> None:
        self.width = width
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._slots: dict[float, list[T]] = {}
        """By the time at which they go off. Items that were moved since are still in their old slots."""
        self._order: list[float] = []
        """Heap of these times."""
        self._due: dict[T, float] = {}
        """The slot that counts."""
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<TimerWheel {len(self._due)} items in {len(self._slots)} slots>"

    def put(self, item: T, seconds: float) -> None:
        """In so many seconds, instead of what was said before."""
        time = math.ceil((self._loop.time() + seconds) / self.width) * self.width
        self._due[item] = time
        slot = self._slots.get(time)
        if slot is None:
            slot = self._slots[time] = []
            heapq.heappush(self._order, time)
            if self._order[0] == time:
                self._wind()
        slot.append(item)

    def remove(self, item: T) -> None:
        self._due.pop(item, None)

    def close(self) -> None:
        self._due.clear()
        self._slots.clear()
        self._order.clear()
        self._wind()

    def _wind(self) -> None:
        """Set the timer for the first slot."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._order[0], self._turn) if self._order else None

    def _turn(self) -> None:
        now = self._loop.time() + EARLY
        while self._order and self._order[0] <= now:
            time = heapq.heappop(self._order)
            for item in self._slots.pop(time):
                if self._due.get(item) == time:
                    del self._due[item]
                    self._on_due(item)
        self._wind()
