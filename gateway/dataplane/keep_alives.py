"""Keeps streams that have nothing to send from being silent: load balancers close silent connections.

A stream may have nothing to send for minutes: while its request waits for room, for a load, for a retry or
for its first token, or while another engine takes over. Each time that its client has received nothing for
the interval, it gets a comment, or what its dialect has instead. The first one begins the response. Until
then, errors keep their own status; after that, they are the stream's last event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.dataplane.dialect import Headers
from gateway.dataplane.exchange import Exchange

_LOOK_SECONDS = 1.0
"""Maximum time between two checks of the streams. There are at least four within the interval."""


@dataclass(slots=True)
class _Stream:
    headers: Headers
    sent: int
    """As of the last check, whose time `since` is if anything was sent before it."""
    since: float


class KeepAlives:
    """Watches the streams of one worker. Mutable: when each has last sent something.

    On the event loop. It reads the transports' counters at each check: a timestamp for each event would cost
    more than everything else here."""

    def __init__(self, interval: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`interval`: seconds; 0: never."""
        self.interval = interval
        self._clock = clock
        self._streams: dict[Exchange, _Stream] = {}

    def __repr__(self) -> str:
        return f"<KeepAlives of {len(self._streams)} streams>"

    def watch(self, exchange: Exchange, headers: Headers) -> None:
        """Watch a stream until `forget`. `headers`: of a response that begins before its answer."""
        sent = exchange.transport.sent
        if self.interval and sent is not None:
            self._streams[exchange] = _Stream(headers, sent, self._clock())

    def forget(self, exchange: Exchange) -> None:
        """Idempotent."""
        self._streams.pop(exchange, None)

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self.interval / 4 or _LOOK_SECONDS))
            await self.look()

    async def look(self) -> None:
        now = self._clock()
        for exchange, stream in list(self._streams.items()):
            sent = exchange.transport.sent
            if sent is None or sent != stream.sent:
                stream.sent, stream.since = sent or 0, now
            elif self.interval and now - stream.since >= self.interval:
                await exchange.keep_alive(stream.headers)
                stream.sent, stream.since = exchange.transport.sent or 0, now
