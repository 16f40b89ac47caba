"""An ASGI request as an `exchange.RequestTransport`: for the admin and finance API, which FastAPI serves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]

SESSION_KEY: Final = "florin.session_key"
"""In the scope of a request from the console: the key of the session (`tenants.directory.Key`), and of
one with a token: the person whom the gate has verified. A scope that came from a socket never has it."""
_NOTICE_SECONDS = 1.0


class AsgiRequest:
    """See `exchange.RequestTransport`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope.get("query_string", b"")
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.first_headers: Mapping[bytes, bytes] = dict(reversed(self.headers))
        self.client: str = (scope.get("client") or ("",))[0]
        self.ticket: object = None
        self.sent: int | None = None
        self._receive = receive
        self._send = send
        self._watch: asyncio.Future[Message] | None = None

    def arrived(self) -> bytes | None:
        return None

    async def read(self) -> tuple[bytes, bool] | None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            return None
        return message.get("body", b""), message.get("more_body", False)

    def gone(self) -> bool:
        return False

    def watch(self, on_disconnect: Callable[[], object] | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if on_disconnect is not None:
            self._watch = asyncio.ensure_future(self._receive())
            self._watch.add_done_callback(
                lambda future: future.cancelled() or future.exception() or on_disconnect()
            )

    async def wait_for_disconnect(self) -> None:
        """Uvicorn logs a request without a response as an error unless it has noticed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NOTICE_SECONDS):
                await (self._watch or self._receive())

    async def respond(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, linger: bool = False
    ) -> None:
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        if linger:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self.end(body)

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def write_now(self, data: bytes) -> bool:
        return not data  # `write` must wait

    async def end(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data})
