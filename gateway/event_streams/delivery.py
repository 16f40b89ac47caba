"""Delivers one stream of events. Every worker runs the job, and the one that holds the role delivers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.coordination import CoordinationStore, resigning
from gateway.event_streams.receiver import Receiver, Refusal
from gateway.event_streams.streams import Page, StreamName, advanced, begin, note_failure, read_page
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger

log = logging.getLogger("florin.events")

LEASE_MS: Final = 10_000
LOOK_SECONDS: Final = 1.0
MOST: Final = 100
"""Events of one post."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0
"""Seconds between two attempts while the receiver fails."""


class Counters(Protocol):
    """Of the worker's metrics."""

    def event_post(self, stream: str, result: str, events: int) -> None:
        """`result`: `delivered`, `failed`."""


@dataclass(slots=True)
class EventDelivery:
    """Posts one page at a time, so that events arrive in order. What the receiver does not take waits, for as
    long as it takes. If two workers believe that they lead, events arrive twice."""

    stream: StreamName
    source: str
    store: CoordinationStore
    ledger: Ledger
    owner: str
    receiver: Receiver
    clock: Callable[[], int]
    """Microseconds, UTC."""
    counters: Counters
    look: float = LOOK_SECONDS
    # Mutable: whether the stream has begun, attempts that failed in a row, the size of the next page, and the
    # last failure that was logged.
    _begun: bool = False
    _failures: int = 0
    _most: int = MOST
    _said: str = ""

    @property
    def role(self) -> str:
        return f"{self.stream}-events"

    async def run(self) -> None:
        """Run until cancelled."""
        due = time.monotonic()
        async with resigning(self.store, self.role, self.owner), self.receiver:
            while True:
                pause = self.look
                with contextlib.suppress(StoreUnavailableError):
                    if await self.store.lead(self.role, self.owner, LEASE_MS):
                        if time.monotonic() >= due:
                            due = time.monotonic() + await self.step()
                        pause = min(self.look, max(0.0, due - time.monotonic()))
                await asyncio.sleep(pause)

    async def begin(self) -> None:
        """Before the worker serves, so that the first request is in the stream. Raises
        LedgerUnavailableError."""
        await asyncio.to_thread(begin, self.ledger, self.stream, self.clock())
        self._begun = True

    async def step(self) -> float:
        """Deliver one page. Returns the seconds until the next attempt."""
        try:
            if not self._begun:
                await self.begin()
            page = await asyncio.to_thread(
                read_page, self.ledger, self.stream, source=self.source, limit=self._most
            )
            if page is None:
                return self.look
            refusal = (
                await self.receiver.post(page.events, self.clock() // 1_000_000) if page.events else None
            )
            if refusal is None:
                await self._taken(page)
                return 0.0 if page.more else self.look
            return await self._refused(refusal, len(page.events))
        except LedgerUnavailableError:  # others log it
            return self._pause(0.0)
        except Exception:  # a defect must not come back in a hurry
            log.exception("Events of %s cannot be delivered", self.stream)
            return self._pause(0.0)

    async def _taken(self, page: Page) -> None:
        await asyncio.to_thread(_commit, self.ledger, self.stream, page, self.clock())
        if page.events:
            self.counters.event_post(self.stream, "delivered", len(page.events))
        if self._said:
            log.warning("Events of %s are delivered again.", self.stream)
        self._failures, self._said = 0, ""
        self._most = min(2 * self._most, MOST)

    async def _refused(self, refusal: Refusal, count: int) -> float:
        self.counters.event_post(self.stream, "failed", count)
        if refusal.reason != self._said:
            log.warning("Events of %s cannot be delivered: %s. Retrying.", self.stream, refusal.reason)
            await asyncio.to_thread(note_failure, self.ledger, self.stream, refusal.reason)
        self._said = refusal.reason
        if refusal.too_large and count > 1:
            self._most = max(1, count // 2)
            return 0.0
        return self._pause(refusal.retry_after)

    def _pause(self, at_least: float) -> float:
        """Doubles with each failure; the jitter spreads the retries of many gateways."""
        self._failures += 1
        longest = min(FIRST_PAUSE * 2.0 ** min(self._failures - 1, 20), LONGEST_PAUSE)
        return max(at_least, longest * random.uniform(0.5, 1.0))  # noqa: S311  # no secret


def _commit(ledger: Ledger, stream: StreamName, page: Page, now: int) -> None:
    with ledger.write() as connection:
        page.advance(connection)
        advanced(connection, stream, now)
