"""Load shedding: an overloaded worker refuses requests before they are read.

What engines cannot serve at once waits in the fair queue (`gateway.admission.fair_queue`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final, NamedTuple

TICK_SECONDS: Final = 0.05
LATE_SECONDS: Final = 0.05
"""Delay after which a tick is late, provided that the event loop used the processor for half of the delay.
(A loop that other processes starve is not overloaded.) A request takes about ten loop iterations."""
TOLERATED_LATE_TICKS: Final = 3
"""Late ticks in a row that pass for a burst."""
MAX_TICKETS: Final = 32
"""Open tickets of an overloaded worker: enough to keep it busy, few enough to keep loop iterations short."""
MOST_TICKETS: Final = 4 * MAX_TICKETS
"""The same limit while senders with less than their share compete with others that have more."""
_MOST_KNOWN: Final = 1000
"""Networks, and credentials of each, that are told apart."""
_SHARES_TICKS: Final = 20
"""Ticks after which senders that have not asked again have no share."""
MAX_REFUSED_SHARE: Final = 0.95
"""Caps the share of refused requests in `retry_after`, so that it never exceeds 20 seconds."""
CALM_TICKS: Final = 20
"""Ticks without a refusal after which the overload is over."""


class Sender(NamedTuple):
    """Who sends a request, as far as its headers tell."""

    network: object
    credential: int
    """A hash of what it authenticates with."""
    refused: bool
    """Its connection's last answer was that its key is unknown, or that it is over a limit."""


class TicketShares:
    """Who holds the tickets of an overloaded worker, so that nobody gets all of them by asking most often.

    The networks that ask have equal shares, and within each the credentials. A sender with less than its
    share is admitted although others still hold more than theirs. Mutable, on the event loop only: the open
    tickets, and who has asked lately.
    """

    def __init__(self) -> None:
        self._held: Counter[object] = Counter()
        """By network, and by (network, credential)."""
        self._asking: dict[object, set[int]] = {}
        """The credentials of each network, in this period."""
        self._asked: dict[object, set[int]] = {}
        """Likewise in the period before it."""

    def admits(self, sender: Sender, open_tickets: int) -> bool:
        network, credential, refused = sender
        self._note(network, credential)
        if open_tickets >= MOST_TICKETS or (refused and open_tickets >= MAX_TICKETS // 4):
            return False
        networks = len(self._asking.keys() | self._asked.keys())
        credentials = len(self._asking.get(network, _NOBODY) | self._asked.get(network, _NOBODY))
        share = max(1, MAX_TICKETS // networks)
        own = max(1, share // credentials)
        return self._held[network] < 2 * share and self._held[network, credential] < own

    def tick(self) -> None:
        """Half a period is over: forget senders that have not asked since the last call."""
        self._asked, self._asking = self._asking, {}

    def take(self, sender: Sender) -> None:
        self._held[sender.network] += 1
        self._held[sender.network, sender.credential] += 1

    def give_back(self, sender: Sender) -> None:
        for holder in (sender.network, (sender.network, sender.credential)):
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]

    def _note(self, network: object, credential: int) -> None:
        known = self._asking.get(network)
        if known is None:
            if len(self._asking) >= _MOST_KNOWN:
                return
            known = self._asking[network] = set()
        if len(known) < _MOST_KNOWN:
            known.add(credential)


_NOBODY: Final[frozenset[int]] = frozenset()


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
        self._shares = TicketShares()
        self._ticks = 0

    def __repr__(self) -> str:
        return f"<LoopWatch {'overloaded' if self.overloaded else 'ok'}, {self.open_tickets} open tickets>"

    @property
    def retry_after(self) -> int:
        """Seconds: a client that retries every second succeeds after about this many."""
        return round(1 / (1 - min(self._refused_share, MAX_REFUSED_SHARE)))

    def issue_ticket(self, sender: Sender | None = None) -> AdmissionTicket | None:
        """Admit a new request. None: refuse it. `sender`: if the worker is overloaded, and it is known."""
        if self.overloaded:
            if sender is None:
                admitted = self.open_tickets < MAX_TICKETS
            else:
                admitted = self._shares.admits(sender, self.open_tickets)
            if not admitted:
                self._refused += 1
                return None
        self._admitted += 1
        return AdmissionTicket(self, self._shares, sender)

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
        self._ticks += 1
        if self._ticks % _SHARES_TICKS == 0:
            self._shares.tick()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            due, before = time.monotonic() + TICK_SECONDS, time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            self.note(time.monotonic() - due, time.thread_time() - before)


class AdmissionTicket:
    """Counts one request while it needs this worker. All methods are idempotent."""

    __slots__ = ("_counted", "_sender", "_shares", "_watch")

    def __init__(self, watch: LoopWatch, shares: TicketShares, sender: Sender | None) -> None:
        self._watch = watch
        self._shares = shares
        self._sender = sender
        self._counted = True
        watch.open_tickets += 1
        if sender is not None:
            shares.take(sender)

    def pause(self) -> None:
        """The request waits for its client."""
        if self._counted:
            self._counted = False
            self._watch.open_tickets -= 1
            if self._sender is not None:
                self._shares.give_back(self._sender)

    close = pause

    def resume(self) -> None:
        if not self._counted:
            self._counted = True
            self._watch.open_tickets += 1
            if self._sender is not None:
                self._shares.take(self._sender)
