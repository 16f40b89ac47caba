"""One HTTP request and its response, over ASGI: the only place that knows how bytes come and go.

Raw ASGI rather than a framework's request and response: this is the hot path, and the framework's share of
it would be larger than Florin's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.admission.bounds import Place
from gateway.admission.overload import Beginning
from gateway.dataplane.disconnect import GONE
from gateway.errors import FlorinError
from gateway.observability.request_context import CURRENT, RequestContext

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


BEGINNING = "florin.beginning"
"""Key of the scope: what the worker's overload knows of this request, or the FlorinError that refuses it."""
READ_OVER = 1024 * 1024
"""Bytes of an unread body that the server reads to its end after an answer, so that the connection can be
used again; where more may come, the connection is closed instead."""
_LINGER_BYTES = 64 * 1024 * 1024
_LINGER_SECONDS = 2.0
_NOTICE_SECONDS = 1.0


class ClientGoneError(Exception):
    """The client hung up before any engine heard of its request."""


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.client: str = (scope.get("client") or ("",))[0]
        """Address of whoever is connected: the client, or a proxy."""
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._gone: Callable[[], bool] | None = scope.get(GONE)
        self._beginning: Beginning | FlorinError | None = scope.get(BEGINNING)
        self._receive = receive
        self._send = send
        self.request_id = "req-" + os.urandom(12).hex()
        self.context = RequestContext(self.request_id)
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self.started = False
        """The response has begun: its status can no longer change."""
        self.streaming = False
        self.finished = False
        self.hung_up = False
        self.place: Place | None = None
        """In flight as this; left when the exchange is closed."""
        self.payload = b""
        """What the engine is sent. Empty again from the answer's first byte on: then nothing is retried."""
        self._unread = True
        self._watch: asyncio.Future[Message] | None = None

    # -- the request

    def introduce(self) -> RequestContext:
        """What the client's headers say of where the request belongs; from now on the log bears its names."""
        self.context.read(self._headers)
        CURRENT.set(self.context)
        return self.context

    def check_overload(self) -> None:
        """Raises FlorinError when the worker has too much to do."""
        if isinstance(self._beginning, FlorinError):
            raise self._beginning

    def has_begun(self) -> None:
        """From now on it waits for others, and no more for this worker."""
        if isinstance(self._beginning, Beginning):
            self._beginning.end()

    def bearer(self) -> bytes:
        """The key in `Authorization: Bearer …`; empty when there is none."""
        for name, value in self._headers:
            if name == b"authorization":
                scheme, _, key = value.partition(b" ")
                return key.strip() if scheme.lower() == b"bearer" else b""
        return b""

    async def body(self, limit: int) -> bytes:
        """The whole body, counted into `place` as it comes. Raises FlorinError beyond `limit` bytes, without
        reading the rest, or any of it where its length is declared."""
        self.refuse_longer(limit)
        parts, size, more = [], 0, True
        self.has_begun()  # unless the body is here already
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > limit:
                raise too_large(limit)
            if self.place is not None:
                self.place.grow(len(part))
            parts.append(part)
        if isinstance(self._beginning, Beginning):
            self._beginning.resume()
        self.read()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read(self) -> None:
        """The body has been read to its end."""
        self._unread = False

    def refuse_longer(self, limit: int) -> None:
        """Raises FlorinError when the body says that it is longer."""
        if declared_length(self._headers) > limit:
            raise too_large(limit)

    def declares_body(self) -> bool:
        return declared_length(self._headers) != 0

    def leaves_unread(self) -> bool:
        """Is there more of the body than is worth reading over, and nobody has read it?"""
        return self._unread and not 0 <= declared_length(self._headers) <= READ_OVER

    def keep(self, payload: bytes) -> None:
        """From now on this is held in the body's place."""
        self.payload = payload
        if self.place is not None:
            self.place.hold(len(payload))

    def let_go(self) -> None:
        """The engine answers: the payload is not needed any more."""
        self.payload = b""
        if self.place is not None:
            self.place.hold(0)

    def watch(self) -> None:
        """From now on, a client that hangs up cancels the running task. Call when the body has been read.
        Raises ClientGoneError."""
        self.check_client()
        task = asyncio.current_task()
        assert task is not None
        self._watch = asyncio.ensure_future(self._receive())
        self._watch.add_done_callback(lambda f: self._on_message(f, task))

    def check_client(self) -> None:
        """Raises ClientGoneError when the client has hung up, even if nothing has been read that says so."""
        if self._gone is not None and self._gone():
            self.hung_up = self.finished = True
            raise ClientGoneError

    def _on_message(self, future: asyncio.Future[Message], task: asyncio.Task[Any]) -> None:
        if not self.finished and not future.cancelled() and future.exception() is None:
            self.hung_up = True
            task.cancel()

    async def noticed(self) -> None:
        """Until the server has seen it too: it takes a request without an answer for a defect."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NOTICE_SECONDS):
                await (self._watch or self._receive())

    def close(self) -> None:
        """However the request ends, and any number of times."""
        if self._watch is not None:
            self._watch.cancel()
        if self.place is not None:
            self.place.leave()
        self.has_begun()

    # -- the response

    async def respond(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A whole JSON response."""
        self.started = True
        self.context.status = status
        self.let_go()
        more = [(k.encode(), v.encode()) for k, v in headers.items()] if headers else []
        unread = self.leaves_unread()
        if unread:
            more.append((b"connection", b"close"))
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", JSON),
                    (b"content-length", b"%d" % len(body)),
                    *self.context.ids(),
                    *self.extra_headers,
                    *more,
                ],
            }
        )
        self.finished = True
        if unread:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            await self.linger()
            body = b""
        await self._send({"type": "http.response.body", "body": body})

    async def linger(self) -> None:
        """After an answer that came before the end of the body, and before the connection is closed. A client
        that is still sending would be told that the connection broke, instead of reading the answer: so what
        comes is thrown away for a moment."""
        if any(name == b"expect" for name, _ in self._headers):
            return  # it waits for leave to send
        size, more = 0, True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while more and size <= _LINGER_BYTES:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    more = message.get("more_body", False)

    async def begin_stream(self) -> None:
        self.started = self.streaming = True
        self.context.status = 200
        self.let_go()
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", EVENTS),
                    (b"cache-control", b"no-cache"),
                    *self.context.ids(),
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


def declared_length(headers: list[tuple[bytes, bytes]]) -> int:
    """Of the body, in bytes; -1: it comes in chunks; 0: there is none."""
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0  # the server has refused anything else
        if name == b"transfer-encoding":
            return -1
    return 0


def too_large(limit: int) -> FlorinError:
    return FlorinError("body_too_large", f"The body is larger than {limit:,} bytes.")


def error_event(body: bytes) -> bytes:
    """An error object as the stream's last event, and the end that clients wait for."""
    return b"data: " + body + b"\n\ndata: [DONE]\n\n"
