"""How far each stream is, for the metrics and conditions of every worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.event_streams.streams import StreamName, StreamStatus, read_status
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.observability.conditions import Condition

WATCH_SECONDS: Final = 15.0
LATE_SECONDS: Final = 300.0
"""Without a delivery, while something waits."""


class Gauges(Protocol):
    def event_lag(self, stream: str, seconds: float) -> None: ...


@dataclass(slots=True)
class EventWatch:
    """Only for streams that have a receiver."""

    streams: Sequence[StreamName]
    ledger: Ledger
    clock: Callable[[], int]
    gauges: Gauges
    # Mutable: what the last look found.
    _late: list[Condition] = field(default_factory=list)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(WATCH_SECONDS)

    async def look(self) -> None:
        late: list[Condition] = []
        for stream in self.streams:
            try:
                status = await asyncio.to_thread(read_status, self.ledger, stream)
            except LedgerUnavailableError:  # another condition says so
                return
            now = self.clock()
            self.gauges.event_lag(stream, status.lag(now))
            late += _late(stream, status, now)
        self._late = late

    def conditions(self) -> Iterator[Condition]:
        yield from self._late


def _late(stream: StreamName, status: StreamStatus, now: int) -> Iterator[Condition]:
    stuck = status.stuck(now)
    if stuck > LATE_SECONDS:
        detail = f": {status.failure}" if status.failure else ""
        message = f"Events of {stream} have waited for {stuck / 60:.0f} minutes{detail}."
        yield Condition("events_late", stream, message)
