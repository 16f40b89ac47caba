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
LATE_SECONDS: Final = 0.05
"""A tick that comes later than this is late, if the event loop has worked for half of that time. (A loop that
others keep from the processor has not too much to do.) A request needs the loop about ten times."""
BURST: Final = 3
"""Late ticks in a row that are taken for a burst, and served."""
MOST_BEGUN: Final = 32
"""Requests that an overloaded worker has begun at a time: enough to keep it busy, and few enough to keep its
rounds short."""
MOST_SHARE: Final = 0.95
"""Of the requests that are refused, for `retry_after`: nobody is sent away for longer than twenty seconds."""
CALM: Final = 20
"""Ticks without a refusal after which the overload is over."""


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
    """Whether this worker's event loop has more to do than it can, and which requests are refused then: those
    that come while MOST_BEGUN are between their first byte and the search for an engine. So what is taken
    follows from what gets done, and nothing has to be estimated. Mutable."""

    def __init__(self) -> None:
        self.overloaded = False
        self.begun = 0
        """Requests that wait for this worker, and for nothing else."""
        self._late = self._calm = 0
        """Ticks in a row."""
        self._taken = self._refused = 0
        """Requests since the last tick."""
        self._share = 0.0

    def __repr__(self) -> str:
        return f"<LoopWatch {'overloaded' if self.overloaded else 'well'}, {self.begun} begun>"

    @property
    def retry_after(self) -> int:
        """Seconds: whoever comes again each second is served after so many, by the share that is refused."""
        return round(1 / (1 - min(self._share, MOST_SHARE)))

    def begin(self) -> Beginning | None:
        """A request has come. None: it is to be refused."""
        if self.overloaded and self.begun >= MOST_BEGUN:
            self._refused += 1
            return None
        self._taken += 1
        return Beginning(self)

    def note(self, late: float, busy: float) -> None:
        """Seconds by which a tick came late, and processor seconds since the one before."""
        self._late = self._late + 1 if late > LATE_SECONDS and busy > late / 2 else 0
        self._calm = 0 if self._refused or self._late else self._calm + 1
        if self._late > BURST:
            self.overloaded = True
        elif self._calm > CALM:
            self.overloaded = False
        asked = self._taken + self._refused
        if asked:
            self._share += (self._refused / asked - self._share) / CALM
        self._taken = self._refused = 0

    async def run(self) -> None:
        """For ever; cancel to stop."""
        while True:
            due, before = time.monotonic() + TICK_SECONDS, time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            self.note(time.monotonic() - due, time.thread_time() - before)


class Beginning:
    """One request until an engine is looked for. `end` may be called any number of times and counts once."""

    __slots__ = ("_counted", "_watch")

    def __init__(self, watch: LoopWatch) -> None:
        self._watch = watch
        self._counted = False
        self.resume()

    def pause(self) -> None:
        """It waits for its client."""
        if self._counted:
            self._counted = False
            self._watch.begun -= 1

    end = pause

    def resume(self) -> None:
        if not self._counted:
            self._counted = True
            self._watch.begun += 1
