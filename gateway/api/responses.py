"""Answers of the admin side on their way to the client: in pieces, so that a long one is not put into the
connection's buffer at once, and given up when nobody reads them.

Whatever an answer holds (its memory, the file of an export, a place) is so held for a bounded time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gateway.dataplane.exchange import Exchange, Message, Send

PIECE: Final = 64 * 1024
IDLE_SECONDS: Final = 30.0
"""In which a client must take at least a piece."""
SLOWEST: Final = 16 * 1024
"""Bytes a second that a client must take on average, after its first idle seconds."""


class ClientStalledError(Exception):
    """The client does not read its answer, or hardly."""


class ChunkedResponse:
    def __init__(self, exchange: Exchange, send: Send, *, idle: float = IDLE_SECONDS) -> None:
        self._idle = idle
        self._exchange = exchange
        self._send = send
        self.on_start: Callable[[], None] = _nothing
        # Mutable: whether the connection ends with the answer; bytes sent, and seconds that the client let
        # us wait.
        self._closing = False
        self._sent = 0
        self._waited = 0.0

    async def send(self, message: Message) -> None:
        """ASGI's send. Raises ClientStalledError."""
        if message["type"] == "http.response.start":
            self.on_start()
            self._exchange.started = True
            self._closing = self._exchange.leaves_unread()
            headers = list(message.get("headers", ()))
            if self._closing and not any(name == b"connection" for name, _ in headers):
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
            await self._send(message)
            return
        body = message.get("body", b"")
        while len(body) > PIECE:
            await self._piece({"type": message["type"], "body": bytes(body[:PIECE]), "more_body": True})
            body = memoryview(body)[PIECE:]
        if self._closing and not message.get("more_body"):
            await self._piece({"type": message["type"], "body": bytes(body), "more_body": True})
            await self._exchange.linger()
            body = b""
        if not message.get("more_body"):
            self._exchange.finished = True
        await self._piece({**message, "body": bytes(body)})

    async def _piece(self, message: Message) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._idle):
                await self._send(message)
        except TimeoutError:
            raise ClientStalledError from None
        self._sent += len(message.get("body", b""))
        self._waited += time.monotonic() - began
        if self._waited > self._idle and self._sent < SLOWEST * (self._waited - self._idle):
            raise ClientStalledError


def _nothing() -> None:
    pass
