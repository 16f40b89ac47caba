"""Delivers one stream of events, on one worker of the installation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from adapters.store.leader_job import PassFailedError
from gateway.event_streams.receiver import Receiver, Refusal
from gateway.event_streams.streams import Page, StreamName, advanced, begin, note_failure, read_page
from gateway.metering.ledger.ledger import Ledger

LOOK_SECONDS: Final = 1.0
MOST: Final = 100
"""Events of one post."""
LONGEST_PAUSE: Final = 300.0
"""Seconds between two attempts while the receiver fails."""


class Counters(Protocol):
    """The worker's metrics, as far as delivery needs them."""

    def event_post(self, stream: str, result: str, events: int) -> None:
        """`result`: `delivered`, `failed`."""


@dataclass(slots=True)
class EventDelivery:
    """The passes of the worker that leads: each posts one page, so that events arrive in order. What the
    receiver does not take waits, for as long as it takes. While two workers believe that they lead, events
    arrive twice."""

    stream: StreamName
    source: str
    ledger: Ledger
    receiver: Receiver
    clock: Callable[[], int]
    """Microseconds, UTC."""
    counters: Counters
    # Mutable: whether the stream has begun, and the size of the next page.
    _begun: bool = False
    _most: int = MOST

    async def begin(self) -> None:
        """Before the worker serves, so that the first request is in the stream. Raises
        LedgerUnavailableError."""
        await asyncio.to_thread(begin, self.ledger, self.stream, self.clock())
        self._begun = True

    async def step(self) -> float:
        """Deliver one page. Returns the seconds until the next. Raises LedgerUnavailableError, and
        PassFailedError if the receiver does not take it."""
        if not self._begun:
            await self.begin()
        page = await asyncio.to_thread(
            read_page, self.ledger, self.stream, source=self.source, limit=self._most
        )
        if page is None:
            return LOOK_SECONDS
        refusal = await self.receiver.post(page.events, self.clock() // 1_000_000) if page.events else None
        if refusal is not None:
            return self._refused(refusal, len(page.events))
        await asyncio.to_thread(_commit, self.ledger, self.stream, page, self.clock())
        if page.events:
            self.counters.event_post(self.stream, "delivered", len(page.events))
        self._most = min(2 * self._most, MOST)
        return 0.0 if page.more else LOOK_SECONDS

    def _refused(self, refusal: Refusal, count: int) -> float:
        self.counters.event_post(self.stream, "failed", count)
        if refusal.too_large and count > 1:
            self._most = max(1, count // 2)
            return 0.0
        raise PassFailedError(refusal.reason, at_least=refusal.retry_after)

    async def report(self, failure: str) -> None:
        """Record how a pass ended, for `florin doctor`. Raises LedgerUnavailableError."""
        if failure:
            await asyncio.to_thread(note_failure, self.ledger, self.stream, failure)


def _commit(ledger: Ledger, stream: StreamName, page: Page, now: int) -> None:
    with ledger.write() as connection:
        page.advance(connection)
        advanced(connection, stream, now)
