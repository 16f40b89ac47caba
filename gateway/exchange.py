"""One HTTP request and its response, over ASGI: the only place that knows how bytes come and go.

Raw ASGI rather than a framework's request and response: this is the hot path, and the framework's share of
it would be larger than Florin's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.errors import FlorinError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


class ClientGoneError(Exception):
    """The client hung up before its request was whole."""


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send
        self.request_id = "req-" + os.urandom(12).hex()
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self.started = False
        """The response has begun: its status can no longer change."""
        self.streaming = False
        self.finished = False
        self.hung_up = False
        self._watch: asyncio.Future[Message] | None = None

    # -- the request

    def bearer(self) -> bytes:
        """The key in `Authorization: Bearer …`; empty when there is none."""
        for name, value in self._headers:
            if name == b"authorization":
                scheme, _, key = value.partition(b" ")
                return key.strip() if scheme.lower() == b"bearer" else b""
        return b""

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises FlorinError beyond `limit` bytes, without reading the rest."""
        message = await self._receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            parts, size = [body], len(body)
            while message.get("more_body"):
                if size > limit:
                    break
                message = await self._receive()
                parts.append(message.get("body", b""))
                size += len(parts[-1])
            body = b"".join(parts)
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        if len(body) > limit:
            raise FlorinError("body_too_large", f"The body is larger than {limit} bytes.")
        return body

    def watch(self) -> None:
        """From now on, a client that hangs up cancels the running task. Call when the body has been read."""
        task = asyncio.current_task()
        assert task is not None
        self._watch = asyncio.ensure_future(self._receive())
        self._watch.add_done_callback(lambda f: self._on_message(f, task))

    def _on_message(self, future: asyncio.Future[Message], task: asyncio.Task[Any]) -> None:
        if not self.finished and not future.cancelled() and future.exception() is None:
            self.hung_up = True
            task.cancel()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    # -- the response

    async def respond(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A whole JSON response."""
        self.started = True
        more = [(k.encode(), v.encode()) for k, v in headers.items()] if headers else []
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", JSON),
                    (b"content-length", b"%d" % len(body)),
                    (b"x-request-id", self.request_id.encode()),
                    *self.extra_headers,
                    *more,
                ],
            }
        )
        self.finished = True
        await self._send({"type": "http.response.body", "body": body})

    async def begin_stream(self) -> None:
        self.started = self.streaming = True
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", EVENTS),
                    (b"cache-control", b"no-cache"),
                    (b"x-request-id", self.request_id.encode()),
                    *self.extra_headers,
                ],
            }
        )

    async def write(self, data: bytes) -> None:
        """Waits while the client reads more slowly than the engine writes."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes = b"") -> None:
        self.finished = True
        await self._send({"type": "http.response.body", "body": data})

    async def fail(self, error: FlorinError) -> None:
        """The error, in whatever form the response still allows."""
        if not self.started:
            await self.respond(error.status, error.body(), error.headers)
        elif self.streaming and not self.finished:
            await self.end_stream(error_event(error.body()))


def error_event(body: bytes) -> bytes:
    """An error object as the stream's last event, and the end that clients wait for."""
    return b"data: " + body + b"\n\ndata: [DONE]\n\n"
