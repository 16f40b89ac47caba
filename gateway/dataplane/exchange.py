"""One HTTP request and its response over ASGI: all reading and writing of bytes happens here.

Raw ASGI instead of a framework's request and response classes: on this hot path, the framework would cost
more time than Florin itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.admission.in_flight import Reservation
from gateway.admission.overload import AdmissionTicket
from gateway.dataplane.disconnect import GONE
from gateway.errors import FlorinError
from gateway.observability.request_context import CURRENT, RequestContext

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


TICKET = "florin.ticket"
"""Scope key of the request's AdmissionTicket, or of the FlorinError that refuses the request."""
MAX_DRAIN_BYTES = 1024 * 1024
"""An unread body of up to this size is drained after the response, so that the connection can be reused. If
more may follow, the connection is closed."""
_LINGER_BYTES = 64 * 1024 * 1024
_LINGER_SECONDS = 2.0
_NOTICE_SECONDS = 1.0


class ClientGoneError(Exception):
    """The client disconnected before its request was sent to an engine."""


class Exchange:
    """One request and its response.

    Belongs to the task that serves the request; nobody else may call it. Read the body with `body`, then call
    `watch`: from then on a disconnect cancels the task, and `hung_up` is true. Respond with exactly one of
    `respond`, a stream (`begin_stream`, `write`, `end_stream`), or `fail`, which may also end a stream. Call
    `close` on every path; it releases the reservation and the ticket, and is idempotent.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.client: str = (scope.get("client") or ("",))[0]
        """Address of the peer: the client, or a proxy."""
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._gone: Callable[[], bool] | None = scope.get(GONE)
        self._ticket: AdmissionTicket | FlorinError | None = scope.get(TICKET)
        self._receive = receive
        self._send = send
        self.request_id = "req-" + os.urandom(12).hex()
        self.context = RequestContext(self.request_id)
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self.started = False
        """The response has started: its status can no longer change."""
        self.streaming = False
        self.finished = False
        self.hung_up = False
        self.reservation: Reservation | None = None
        """Counts the request and its bytes in flight; `close` releases it."""
        self.payload = b""
        """The body for the engine. Dropped at the first byte of the answer, after which nothing is
        retried."""
        self._unread = True
        self._watch: asyncio.Future[Message] | None = None

    # -- the request

    def introduce(self) -> RequestContext:
        """Read the client's request id and trace headers, and add them to the log lines of this task."""
        self.context.read(self._headers)
        CURRENT.set(self.context)
        return self.context

    def check_overload(self) -> None:
        """Raises FlorinError if the overloaded worker refuses this request."""
        if isinstance(self._ticket, FlorinError):
            raise self._ticket

    def close_ticket(self) -> None:
        """The request no longer waits for this worker."""
        if isinstance(self._ticket, AdmissionTicket):
            self._ticket.close()

    def bearer(self) -> bytes:
        """The key in `Authorization: Bearer …`; empty if there is none."""
        for name, value in self._headers:
            if name == b"authorization":
                scheme, _, key = value.partition(b" ")
                return key.strip() if scheme.lower() == b"bearer" else b""
        return b""

    async def body(self, limit: int) -> bytes:
        """Read the whole body and count it in the reservation. Raises FlorinError if it exceeds `limit`
        bytes: before reading any of it if its length is declared, else without reading the rest."""
        self.refuse_longer(limit)
        parts, size, more = [], 0, True
        self.close_ticket()  # while the request waits for its client
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > limit:
                raise too_large(limit)
            if self.reservation is not None:
                self.reservation.grow(len(part))
            parts.append(part)
        if isinstance(self._ticket, AdmissionTicket):
            self._ticket.resume()
        self.read()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read(self) -> None:
        """Note that the body has been read completely."""
        self._unread = False

    def refuse_longer(self, limit: int) -> None:
        """Raises FlorinError if the declared length exceeds `limit`."""
        if declared_length(self._headers) > limit:
            raise too_large(limit)

    def declares_body(self) -> bool:
        return declared_length(self._headers) != 0

    def leaves_unread(self) -> bool:
        """Whether the body is unread and too long to drain."""
        return self._unread and not 0 <= declared_length(self._headers) <= MAX_DRAIN_BYTES

    def keep(self, payload: bytes) -> None:
        """Hold `payload` in memory instead of the body."""
        self.payload = payload
        if self.reservation is not None:
            self.reservation.hold(len(payload))

    def drop_payload(self) -> None:
        """Free the payload: it will not be sent again."""
        self.payload = b""
        if self.reservation is not None:
            self.reservation.hold(0)

    def watch(self) -> None:
        """Cancel the current task if the client disconnects from now on. Call it after the body has been
        read. Raises ClientGoneError if the client is already gone."""
        self.check_client()
        task = asyncio.current_task()
        assert task is not None
        self._watch = asyncio.ensure_future(self._receive())
        self._watch.add_done_callback(lambda f: self._on_message(f, task))

    def check_client(self) -> None:
        """Raises ClientGoneError if the client has disconnected, even before the event loop has noticed."""
        if self._gone is not None and self._gone():
            self.hung_up = self.finished = True
            raise ClientGoneError

    def _on_message(self, future: asyncio.Future[Message], task: asyncio.Task[Any]) -> None:
        if not self.finished and not future.cancelled() and future.exception() is None:
            self.hung_up = True
            task.cancel()

    async def wait_for_disconnect(self) -> None:
        """Wait until the server has noticed the disconnect, too: it logs a request without a response as an
        error otherwise."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NOTICE_SECONDS):
                await (self._watch or self._receive())

    def close(self) -> None:
        """Release what the request holds. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()
        if self.reservation is not None:
            self.reservation.release()
        self.close_ticket()

    # -- the response

    async def respond(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a complete JSON response."""
        self.started = True
        self.context.status = status
        self.drop_payload()
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
        """Discard incoming data for a moment before the connection is closed. Otherwise a client that is
        still sending its body would see a connection reset instead of the response."""
        if any(name == b"expect" for name, _ in self._headers):
            return  # the client waits for `100 Continue`
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
        self.drop_payload()
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
        """Send part of the stream. Blocks while the client reads more slowly than the engine writes."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes = b"") -> None:
        self.finished = True
        await self._send({"type": "http.response.body", "body": data})

    async def fail(self, error: FlorinError) -> None:
        """Send the error in the form that the response still allows: a response, or an event of the
        stream."""
        if not self.started:
            await self.respond(error.status, error.body(), error.headers)
        elif self.streaming and not self.finished:
            await self.end_stream(error_event(error.body()))


def declared_length(headers: list[tuple[bytes, bytes]]) -> int:
    """The length of the body in bytes; -1: chunked; 0: no body."""
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0  # the server rejects anything else
        if name == b"transfer-encoding":
            return -1
    return 0


def too_large(limit: int) -> FlorinError:
    return FlorinError("body_too_large", f"The body is larger than {limit:,} bytes.")


def error_event(body: bytes) -> bytes:
    """An error object as the last event of a stream, followed by [DONE]."""
    return b"data: " + body + b"\n\ndata: [DONE]\n\n"
