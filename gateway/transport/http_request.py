"""One HTTP/1.1 request to the data plane, and its response, on a client's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from gateway.transport.request_head import Headers, RequestHead

STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
} | {529: b"HTTP/1.1 529 Overloaded\r\n"}  # Anthropic's
_REFUSALS: Final = frozenset({401, 429})
_READ_AHEAD: Final = 64 * 1024
"""Bytes of the body that may wait to be read."""


class Connection(Protocol):
    """What a request needs of its connection."""

    address: str
    flow: FlowControl
    gone: Callable[[], bool]
    written: int
    """Bytes written, of all responses."""
    refused: bool
    """The last answer was that the key is unknown, or that it is over a limit."""

    def write(self, data: bytes) -> None: ...

    def client(self, headers: Headers) -> str: ...

    def default_head(self) -> bytes: ...

    def response_complete(self, request: HttpRequest) -> None: ...


class HttpRequest:
    """A request whose headers have arrived. `exchange.RequestTransport` describes the methods.

    Mutable state of the connection's event loop.
    """

    __slots__ = (
        "_chunked",
        "_connection",
        "_expects_continue",
        "_head",
        "_on_disconnect",
        "_parts",
        "_reader",
        "_unread",
        "disconnected",
        "first_headers",
        "head",
        "headers",
        "keep_alive",
        "method",
        "more",
        "path",
        "query",
        "received",
        "response_complete",
        "response_started",
        "ticket",
        "version",
    )

    def __init__(self, connection: Connection, head: RequestHead, ticket: object) -> None:
        self._connection = connection
        self.head = head
        self.method = head.method
        self.path = head.path
        self.query = head.query
        self.headers = head.headers
        self.first_headers = head.first_headers
        self.version = head.version
        self.keep_alive = head.keep_alive
        self.ticket = ticket
        """See `Application.issue_ticket`."""
        self.disconnected = False
        self.received = 0
        """Bytes of the body so far."""
        self.more = True
        """The body is not complete."""
        self._expects_continue = head.expects_continue
        self._parts: list[bytes] = []
        self._unread = 0
        self._reader: asyncio.Future[None] | None = None
        self._on_disconnect: Callable[[], object] | None = None
        self._head = b""
        """The head of a stream, sent with its first part."""
        self._chunked = False
        self.response_started = False
        self.response_complete = False

    @property
    def client(self) -> str:
        """Address of the client, as far as it is known."""
        return self._connection.client(self.headers)

    @property
    def sent(self) -> int:
        """Bytes sent to the client on its connection."""
        return self._connection.written

    # -- called by the connection

    def body_received(self, part: bytes) -> None:
        self.received += len(part)
        if self.response_complete:
            return
        self._expects_continue = False
        self._parts.append(part)
        self._unread += len(part)
        if self._unread > _READ_AHEAD:
            self._connection.flow.pause_reading()
        self._wake()

    def arrived_whole(self, body: bytes) -> None:
        """The whole body, before anybody reads it."""
        self.received = self._unread = len(body)
        self.more = False
        self._parts.append(body)
        if self._unread > _READ_AHEAD:
            self._connection.flow.pause_reading()

    def body_complete(self) -> None:
        self.more = False
        self._wake()

    def lost(self) -> None:
        """The client has disconnected. Idempotent."""
        if self.response_complete or self.disconnected:
            return
        self.disconnected = True
        self._wake()
        if self._on_disconnect is not None:
            self._on_disconnect()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # -- the request

    def arrived(self) -> bytes | None:
        """Take the whole body if it has arrived; None: `read` it."""
        if self.more or self.disconnected:
            return None
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts, self._unread = [], 0
        return data

    async def read(self) -> tuple[bytes, bool] | None:
        """The next part of the body, and whether more follow; None if the client has disconnected."""
        while not self._parts and self.more and not self.disconnected:
            if self._expects_continue:
                self._expects_continue = False
                self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._connection.flow.resume_reading()
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self.disconnected:
            return None
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts, self._unread = [], 0
        return data, self.more

    def gone(self) -> bool:
        """Whether the client has disconnected, even before the event loop has noticed."""
        return self.disconnected or self._connection.gone()

    def watch(self, on_disconnect: Callable[[], object] | None) -> None:
        """Call this function when the client disconnects; None: call nothing any more."""
        self._on_disconnect = on_disconnect
        if self.disconnected and on_disconnect is not None:
            on_disconnect()

    async def wait_for_disconnect(self) -> None:
        """Nothing to wait for: the connection logs no request that was not answered."""

    # -- the response

    async def respond(self, status: int, headers: Headers, body: bytes, *, linger: bool = False) -> None:
        """Send a complete response. `linger`: the client may still be sending the body, and the connection
        is closed afterwards."""
        if self._connection.flow.write_paused:
            await self.drain()
        if self.disconnected:
            return
        self.response_started = True
        self._connection.refused = status in _REFUSALS
        if linger or (self.more and self._expects_continue):  # it may or may not send the body
            self.keep_alive = False
        head = self._render(status, [*headers, (b"content-length", b"%d" % len(body))])
        self._connection.write(head if self.method == "HEAD" else head + body)
        self._complete()

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin a response whose length is not known. Its head is sent with the first `write` or `end`."""
        self.response_started = True
        self._connection.refused = False
        self._chunked = self.version == "1.1"
        framing = [(b"transfer-encoding", b"chunked")] if self._chunked else []
        self._head = self._render(status, [*headers, *framing])

    async def write(self, data: bytes) -> None:
        """Send a part of the response. Waits while the client reads more slowly."""
        while not self.write_now(data):
            await self.drain()

    def write_now(self, data: bytes) -> bool:
        """Send a part, unless the client reads more slowly: then it returns False."""
        if self.disconnected or not data:
            return True
        if self._connection.flow.write_paused:
            return False
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        self._connection.write(data)
        return True

    async def end(self, data: bytes = b"") -> None:
        """Send the last part."""
        await self.drain()
        if self.disconnected:
            return
        head, self._head = self._head, b""
        if self._chunked and self.method != "HEAD":
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        self._connection.write(head + data)
        self._complete()

    async def drain(self) -> None:
        flow = self._connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()

    def _complete(self) -> None:
        self.response_complete = True
        self._parts.clear()
        self._connection.response_complete(self)

    def _render(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        lines = [b": ".join(header) for header in headers]
        if not self.keep_alive:
            lines.append(b"connection: close")
        lines.append(b"\r\n")
        head = b"\r\n".join(lines)
        if head.count(b"\n") != len(lines):
            raise ValueError("a header contains a line break")
        return STATUS_LINES[status] + self._connection.default_head() + head
