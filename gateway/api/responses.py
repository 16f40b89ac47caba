"""Sends responses of the admin and finance API in chunks, and aborts them if the client does not read.

So a long response never fills the connection's buffer, and what it holds (memory, an export file, a place in
the queue) is held for a bounded time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gateway.api.security_headers import security_headers
from gateway.dataplane.asgi import Message, Send
from gateway.dataplane.exchange import Exchange

CHUNK: Final = 64 * 1024
IDLE_SECONDS: Final = 30.0
"""Seconds within which a client must read a chunk."""
MIN_RATE: Final = 16 * 1024
"""Bytes per second that a client must read on average after its first IDLE_SECONDS of delay."""


class ClientStalledError(Exception):
    """The client reads the response too slowly or not at all."""


class ChunkedResponse:
    """Wraps the ASGI `send` of one response."""

    def __init__(self, exchange: Exchange, send: Send, *, idle: float = IDLE_SECONDS) -> None:
        self._idle = idle
        self._exchange = exchange
        self._send = send
        self.on_start: Callable[[], None] = _nothing
        # Mutable: bytes sent, and seconds spent waiting for the client.
        self._sent = 0
        self._waited = 0.0

    async def send(self, message: Message) -> None:
        """ASGI's send. Raises ClientStalledError."""
        if message["type"] == "http.response.start":
            self.on_start()
            self._exchange.started = True
            own = [(name.lower(), value) for name, value in message.get("headers", ())]
            named = {name for name, _ in own}  # browsers apply both of two policies
            default = security_headers(self._exchange.transport.path)
            headers = [*own, *((name, value) for name, value in default if name not in named)]
            if self._exchange.leaves_unread() and not any(name == b"connection" for name, _ in headers):
                headers.append((b"connection", b"close"))
            await self._send({**message, "headers": headers})
            return
        body = message.get("body", b"")
        while len(body) > CHUNK:
            await self._chunk({"type": message["type"], "body": bytes(body[:CHUNK]), "more_body": True})
            body = memoryview(body)[CHUNK:]
        if not message.get("more_body"):
            self._exchange.finished = True
        await self._chunk({**message, "body": bytes(body)})

    async def _chunk(self, message: Message) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._idle):
                await self._send(message)
        except TimeoutError:
            raise ClientStalledError from None
        self._sent += len(message.get("body", b""))
        self._waited += time.monotonic() - began
        if self._waited > self._idle and self._sent < MIN_RATE * (self._waited - self._idle):
            raise ClientStalledError


def _nothing() -> None:
    pass
