"""Load shedding: when to refuse a request instead of queueing it.

Two things can be overloaded. For an engine, the wait in its queue is estimated (`expected_wait`). For this
worker, the delay of its event loop is measured (`LoopWatch`), and requests are refused before they are read.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

WINDOW_SECONDS: Final = 30.0
"""Period over which an engine's completion rate is measured."""
_MAX_COMPLETIONS = 256
"""Completions that are remembered."""
TICK_SECONDS: Final = 0.05
LATE_SECONDS: Final = 0.05
"""Delay after which a tick is late, provided that the event loop used the processor for half of the delay.
(A loop that other processes starve is not overloaded.) A request takes about ten loop iterations."""
TOLERATED_LATE_TICKS: Final = 3
"""Late ticks in a row that pass for a burst."""
MAX_TICKETS: Final = 32
"""Open tickets of an overloaded worker: enough to keep it busy, few enough to keep loop iterations short."""
MAX_REFUSED_SHARE: Final = 0.95
"""Caps the share of refused requests in `retry_after`, so that it never exceeds 20 seconds."""
CALM_TICKS: Final = 20
"""Ticks without a refusal after which the overload is over."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    own: int
    """This worker's requests on the engine, running or queued."""
    all: int
    """All workers' requests on it, as far as known."""
    concurrency: int
    """Requests that the engine runs at a time while others are queued; 0: none are queued."""
    rate: float
    """This worker's requests that completed there per second."""


def expected_wait(load: EngineLoad) -> float:
    """Seconds that another request would wait in the engine's queue; 0 if nothing is queued or known.

    Little's law: the queue length divided by the engine's completion rate, which is estimated from this
    worker's rate and its share of the engine's requests."""
    if not (load.concurrency and load.own and load.rate):
        return 0.0
    waiting = max(0, load.all - load.concurrency)
    return waiting / (load.rate * load.all / load.own)


class CompletionRate:
    """Requests that completed per second. Mutable: the times of the latest completions."""

    def __init__(self) -> None:
        self._completions: deque[float] = deque(maxlen=_MAX_COMPLETIONS)

    def __repr__(self) -> str:
        return f"<CompletionRate of {len(self._completions)}>"

    def record(self, now: float) -> None:
        self._completions.append(now)

    def at(self, now: float) -> float:
        """Completions per second."""
        completions = self._completions
        while completions and now - completions[0] > WINDOW_SECONDS:
            completions.popleft()
        return len(completions) / max(now - completions[0], TICK_SECONDS) if completions else 0.0


class LoopWatch:
    """Detects that this worker's event loop is overloaded, and refuses requests while it is.

    `run` measures how late the loop's ticks come. The server asks `issue_ticket` for each request on the
    data plane whose headers have arrived. A request holds its ticket while it needs this worker: until an
    engine is looked for, but not while it waits for the rest of its body. An overloaded worker refuses
    requests while MAX_TICKETS tickets are open. So the rate of admissions follows the rate of progress, and
    nothing has to be estimated.

    Mutable, and used from the worker's event loop only.
    """

    def __init__(self) -> None:
        self.overloaded = False
        self.open_tickets = 0
        self._late_ticks = self._calm_ticks = 0
        """In a row."""
        self._admitted = self._refused = 0
        """Requests since the last tick."""
        self._refused_share = 0.0
        """Moving average."""

    def __repr__(self) -> str:
        return f"<LoopWatch {'overloaded' if self.overloaded else 'ok'}, {self.open_tickets} open tickets>"

    @property
    def retry_after(self) -> int:
        """Seconds: a client that retries every second succeeds after about this many."""
        return round(1 / (1 - min(self._refused_share, MAX_REFUSED_SHARE)))

    def issue_ticket(self) -> AdmissionTicket | None:
        """Admit a new request. None: refuse it."""
        if self.overloaded and self.open_tickets >= MAX_TICKETS:
            self._refused += 1
            return None
        self._admitted += 1
        return AdmissionTicket(self)

    def note(self, late: float, busy: float) -> None:
        """Record a tick: its delay, and the processor time used since the last one, in seconds."""
        self._late_ticks = self._late_ticks + 1 if late > LATE_SECONDS and busy > late / 2 else 0
        self._calm_ticks = 0 if self._refused or self._late_ticks else self._calm_ticks + 1
        if self._late_ticks > TOLERATED_LATE_TICKS:
            self.overloaded = True
        elif self._calm_ticks > CALM_TICKS:
            self.overloaded = False
        requests = self._admitted + self._refused
        if requests:
            self._refused_share += (self._refused / requests - self._refused_share) / CALM_TICKS
        self._admitted = self._refused = 0

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            due, before = time.monotonic() + TICK_SECONDS, time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            self.note(time.monotonic() - due, time.thread_time() - before)


class AdmissionTicket:
    """Counts one request while it needs this worker. All methods are idempotent."""

    __slots__ = ("_counted", "_watch")

    def __init__(self, watch: LoopWatch) -> None:
        self._watch = watch
        self._counted = False
        self.resume()

    def pause(self) -> None:
        """The request waits for its client."""
        if self._counted:
            self._counted = False
            self._watch.open_tickets -= 1

    close = pause

    def resume(self) -> None:
        if not self._counted:
            self._counted = True
            self._watch.open_tickets += 1
