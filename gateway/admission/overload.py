"""Load shedding: an overloaded worker refuses requests before they are read.

What engines cannot serve at once waits in the fair queue (`gateway.admission.fair_queue`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

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
        self._counted = True
        watch.open_tickets += 1

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
