"""A keep-alive HTTP/1.1 connection to an engine: `asyncio.Protocol` with httptools' parser.

An HTTP client library costs several times as much per request and per chunk as everything else that Florin
does. It needs little of one: it posts a body whose length it knows, to a server that the operator trusts with
answers but not with memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

from gateway.transport.repeated_bytes import RepeatedBytes, repeated_bytes

MAX_HEAD_BYTES: Final = 64 * 1024
"""Maximum bytes of a response that are not its body: the headers, or what lies between two chunks."""
READ_AHEAD_BYTES: Final = 256 * 1024
"""Unread bytes of a response at which reading from the engine pauses."""
_WRITE_AT_ONCE: Final = 256 * 1024
"""Longer requests are written in parts, so that no second copy of them waits in the transport."""

LESSONS: Final = 4
"""An engine may give each response a header of its own, and a date each second."""
_FLUSH_SECONDS: Final = 5.0


class EngineConnectionError(ConnectionError):
    """The connection was lost, or what arrived is not HTTP."""


class ResponseTooLargeError(EngineConnectionError):
    """The response is longer than its reader allows."""


class EngineConnection(asyncio.Protocol):
    """Carries one exchange at a time: `send`, then `read` or `deliver` until the response is `complete`.

    One task uses it at a time. After each exchange, it can carry another only if it is `reusable`; otherwise
    `close` it, which also makes an engine abort the request. All on the event loop.
    """

    __slots__ = (
        "_buffer",
        "_buffered",
        "_can_write",
        "_consume",
        "_error",
        "_keep_alive",
        "_length_known",
        "_lessons",
        "_loop",
        "_overhead",
        "_parser",
        "_paused",
        "_repeated",
        "_sent",
        "_transport",
        "_waiter",
        "complete",
        "idle_since",
        "status",
    )

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", None)
        self._parser = httptools.HttpResponseParser(self)
        self._error: Exception | None = None
        self._waiter: asyncio.Future[bool] | None = None
        """Waits for something to read: headers, a part of the body, or its end. True: `_consume` stopped."""
        self._consume: Callable[[bytes], bool] | None = None
        """Takes parts of the body while `deliver` waits."""
        self._can_write: asyncio.Future[None] | None = None
        """Set while the transport's write buffer is full."""
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._overhead = 0
        self._length_known = False
        self._keep_alive = False
        self._sent = True
        self._repeated: RepeatedBytes | None = None
        """The head of the last response that arrived in one piece."""
        self._lessons = LESSONS
        """Heads that it may still remember, if none of them is sent again."""
        self.status = 0
        """Status of the current response; 0 until its headers are complete."""
        self.complete = True
        """The current response has arrived completely (perhaps not yet been read)."""
        self.idle_since = 0.0

    def __repr__(self) -> str:
        state = "closed" if self.closed else "complete" if self.complete else f"status={self.status}"
        return f"<EngineConnection {state} buffered={self._buffered}>"

    # -- the exchange

    async def send(self, head: bytes, body: bytes) -> int:
        """Send a request and return the status of the response. Raises EngineConnectionError.

        An engine may answer before the body has been sent. The rest of it is not sent then."""
        self._begin()
        transport = self._transport
        if len(body) <= _WRITE_AT_ONCE:
            transport.write(head + body)
        else:
            transport.write(head)
            await self._send_in_parts(memoryview(body))
        while not self.status:
            await self._wait()
        return self.status

    def _begin(self) -> None:
        if self._error is not None:
            raise self._error
        self.complete = False
        self.status = self._overhead = self._buffered = 0
        self._length_known = self._keep_alive = False
        self._sent = True
        self._buffer.clear()

    async def _send_in_parts(self, body: memoryview) -> None:
        for start in range(0, len(body), _WRITE_AT_ONCE):
            if self.status:
                self._sent = False
                return
            self._transport.write(body[start : start + _WRITE_AT_ONCE])
            if self._can_write is not None:
                await self._can_write
            if self._error is not None and not self.status:
                raise self._error

    async def readany(self) -> bytes:
        """The bytes of the body that have arrived, at least one; empty at its end. Raises
        EngineConnectionError."""
        while not self._buffer:
            if self.complete:
                return b""
            await self._wait()
        return self._take()

    async def deliver(self, consume: Callable[[bytes], bool]) -> bool:
        """Call `consume` with each part of the body as it arrives, everything from one read at once, until it
        returns False. That does not wake the task. Returns False at the end of the body. Raises what
        `consume` raises, and EngineConnectionError."""
        stopped = False
        while not stopped:
            if self._buffer:
                stopped = not consume(self._take())
            elif self.complete:
                return False
            else:
                self._consume = consume
                try:
                    stopped = await self._wait()
                finally:
                    self._consume = None
        return True

    def _take(self) -> bytes:
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        self._buffer.clear()
        self._buffered = 0
        if self._paused:
            self._resume_reading()
        return data

    def arrived(self, limit: int) -> bytes | None:
        """Take the whole body if it has arrived and has at most `limit` bytes; None: `read` it."""
        if not self.complete or self._buffered > limit:
            return None
        return self._take() if self._buffer else b""

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises EngineConnectionError, and ResponseTooLargeError above `limit` bytes."""
        body = await self.readany()
        if not self.complete:
            buffer = bytearray(body)  # a list of very small chunks could be 50 times as large
            while part := await self.readany():
                buffer += part
                if len(buffer) > limit:
                    break
            body = bytes(buffer)
        if len(body) > limit:
            raise ResponseTooLargeError(f"the response is longer than {limit:,} bytes")
        return body

    def _resume_reading(self) -> None:
        self._paused = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    async def _wait(self) -> bool:
        """Wait for more of the response. Returns whether `_consume` stopped."""
        if self._error is not None:
            raise self._error
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiter = waiter
        try:
            return await waiter
        finally:
            self._waiter = None

    @property
    def closed(self) -> bool:
        return self._error is not None or self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        """Whether the exchange is over, nothing of it is left unread or unsent, and the engine keeps the
        connection."""
        return (
            self.complete
            and self._sent
            and not self._buffer
            and self._keep_alive
            and not self.closed
            and not self._transport.get_write_buffer_size()
        )

    def close(self) -> None:
        """Close the connection, after what has been written is sent. An engine that was sent a request should
        see it, so that its usage record has a counterpart."""
        if self._error is None:
            self._error = EngineConnectionError("the connection was closed")
        if self._transport.get_write_buffer_size():
            self._transport.close()
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._transport.abort)
        else:
            self._transport.abort()  # with TLS, `close` would wait for the engine's close_notify

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.complete:
            self._fail(EngineConnectionError("the engine sent data without a request"))
            return
        first = not (self.status or self._overhead)
        if not (first and self._recognized(data)):
            self._overhead += len(data)
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                self._fail(EngineConnectionError(f"the engine's response is not valid HTTP: {error}"))
                return
            if self._overhead > MAX_HEAD_BYTES and not self.complete:
                self._fail(EngineConnectionError("the headers of the engine's response are too long"))
                return
            if first and self.complete and self._lessons and self.status == 200 and self._keep_alive:
                self._lessons -= 1
                self._repeated = _repeatable(data)
        waiter = self._waiter
        if self._consume is not None and self._buffer and waiter is not None and not waiter.done():
            try:
                if not self._consume(self._take()):
                    waiter.set_result(True)
            except Exception as error:  # noqa: BLE001 - it is raised in the task
                waiter.set_exception(error)
            if not self.complete:
                return
        if self._buffered > READ_AHEAD_BYTES and not self._paused and not self.complete:
            self._paused = True
            self._transport.pause_reading()
        self._notify()

    def _recognized(self, data: bytes) -> bool:
        """Whether it is a whole response whose head is known."""
        body = None if self._repeated is None else self._repeated.body(data)
        if body is None:
            return False
        self._lessons = LESSONS
        self.status = 200
        self.complete = self._length_known = self._keep_alive = True
        if body:
            self.on_body(body)
        return True

    def eof_received(self) -> None:
        self._lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(exc)

    def pause_writing(self) -> None:
        self._can_write = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._can_write is not None and not self._can_write.done():
            self._can_write.set_result(None)
        self._can_write = None

    def _notify(self) -> None:
        """There is something to read, or an error."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)
        if self.status or self._error is not None:
            self.resume_writing()  # nothing more is sent

    def _lost(self, exc: Exception | None) -> None:
        if not self.complete and self.status and not self._length_known and exc is None:
            self.complete = True  # a body that ends with its connection
        if self._error is None:
            self._error = EngineConnectionError(str(exc) if exc else "the engine closed the connection")
            self._error.__cause__ = exc
        self._notify()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._transport.abort()
        self._notify()

    # -- httptools

    def on_message_begin(self) -> None:
        if self.complete:
            raise EngineConnectionError("a second response")
        self._length_known = False  # that of an interim response does not count

    def on_header(self, name: bytes, _value: bytes) -> None:
        if len(name) in {14, 17} and name.lower() in {b"content-length", b"transfer-encoding"}:
            self._length_known = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # others precede the response
            self.status = status
            self._length_known = self._length_known or status in {204, 304}

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        self._buffer.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self._keep_alive = self._parser.should_keep_alive()


def _repeatable(data: bytes) -> RepeatedBytes | None:
    """The head of a response with status 200 that the parser has read whole; None: parse each of its kind."""
    head = data[: data.find(b"\r\n\r\n") + 2].lower()
    plain = head.startswith(b"http/1.1 200 ") and not any(name in head for name in _FRAMING)
    return repeated_bytes(data) if plain else None


_FRAMING: Final = (b"\r\ntransfer-encoding", b"\r\nupgrade", b"\r\nconnection")
"""Headers with which a response is always parsed."""
