"""When to refuse rather than to queue: what is answered too late is worth nothing, and delays all behind it.

Two things can be too busy. An engine: then a new request would wait there behind others, for a time that can
be estimated. This worker: then its event loop takes long to come round, and requests are refused before they
are read.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

WINDOW_SECONDS: Final = 30.0
"""Of which answers the pace is taken."""
_MOST = 256
"""Answers that are remembered."""
TICK_SECONDS: Final = 0.05
LATE_SECONDS: Final = 0.5
"""A tick that comes so late, twice in a row: the event loop is overloaded, if it also worked for"""
BUSY_SECONDS: Final = 0.1
"""of processor time meanwhile. One that others keep from the processor has not too much to do."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    own: int
    """Requests of this worker there, running or waiting."""
    all: int
    """Of all workers, as far as known."""
    runs: int
    """Requests that the engine runs at a time, now that it says that others wait; 0: none do."""
    pace: float
    """Answers to this worker's requests that ended there, a second."""


def expected_wait(load: EngineLoad) -> float:
    """Seconds that one more request would wait to begin; 0 where nothing waits, or nothing is known.

    Little's law: what waits, divided by the pace at which the engine answers, which is this worker's own pace
    over its share of what is there."""
    if not (load.runs and load.own and load.pace):
        return 0.0
    waiting = max(0, load.all - load.runs)
    return waiting / (load.pace * load.all / load.own)


class Pace:
    """Mutable: when the latest answers ended."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=_MOST)

    def __repr__(self) -> str:
        return f"<Pace of {len(self._ends)}>"

    def note(self, now: float) -> None:
        self._ends.append(now)

    def at(self, now: float) -> float:
        """Answers a second."""
        ends = self._ends
        while ends and now - ends[0] > WINDOW_SECONDS:
            ends.popleft()
        return len(ends) / max(now - ends[0], TICK_SECONDS) if ends else 0.0


class LoopWatch:
    """Whether this worker's event loop has more to do than it can. Mutable: ticks in a row that were late."""

    def __init__(self) -> None:
        self._late = 0

    def __repr__(self) -> str:
        return f"<LoopWatch {'overloaded' if self.overloaded else 'well'}>"

    @property
    def overloaded(self) -> bool:
        return self._late > 1

    def note(self, late: float, busy: float) -> None:
        """Seconds by which a tick came late, and processor seconds since the one before."""
        self._late = self._late + 1 if late > LATE_SECONDS and busy > BUSY_SECONDS else 0

    async def run(self) -> None:
        """For ever; cancel to stop."""
        while True:
            due, before = time.monotonic() + TICK_SECONDS, time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            self.note(time.monotonic() - due, time.thread_time() - before)
