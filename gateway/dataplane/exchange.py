"""One request and its response, as the lifecycle sees them, on whatever carries them (`RequestTransport`)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from gateway.admission.in_flight import Reservation
from gateway.admission.overload import AdmissionTicket
from gateway.dataplane.body_encoding import BodyDecoder, decoder
from gateway.dataplane.dialect import OPENAI, Headers
from gateway.errors import FlorinError
from gateway.observability.request_context import CURRENT, READ_HEADERS, RequestContext
from gateway.runtime.cancel_scope import CancelScope

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


MAX_DRAIN_BYTES = 1024 * 1024
"""An unread body of up to this size is drained after the response, so that the connection can be reused. If
more may follow, the connection is closed."""


class ClientGoneError(Exception):
    """The client has disconnected."""


class RequestTransport(Protocol):
    """An HTTP request and its response, on some transport. `Exchange` is its only user."""

    method: str
    path: str
    query: bytes
    """After the path's `?`."""
    headers: list[tuple[bytes, bytes]]
    first_headers: Mapping[bytes, bytes]
    """The first header of each name."""
    ticket: object

    @property
    def sent(self) -> int | None:
        """Bytes sent on the client's connection; None: they are not counted, and `write_now` never writes."""

    @property
    def client(self) -> str:
        """Address of the client, or of a proxy that is not trusted."""

    def arrived(self) -> bytes | None:
        """Take the whole body if it has arrived; None: `read` it."""

    async def read(self) -> tuple[bytes, bool] | None:
        """The next part of the body, and whether more follow; None if the client has disconnected."""

    def gone(self) -> bool:
        """Whether the client has disconnected, even before the event loop has noticed."""

    def watch(self, on_disconnect: Callable[[], object] | None) -> None:
        """Call this function when the client disconnects; None: call nothing any more."""

    async def wait_for_disconnect(self) -> None:
        """Wait until the server has noticed the disconnect, too."""

    async def respond(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, linger: bool = False
    ) -> None:
        """Send a complete response. `linger`: the client may still be sending the body, and the connection
        is closed afterwards."""

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Begin a response whose length is not known. Its head may wait for the first part."""

    async def write(self, data: bytes) -> None:
        """Send a part. Waits while the client reads more slowly."""

    def write_now(self, data: bytes) -> bool:
        """Send a part if that is possible without waiting. Returns whether it was sent."""

    async def end(self, data: bytes = b"") -> None:
        """Send the last part."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request without a client connection: a line of a batch."""

    key_id: str
    """The key that created the batch, under which the line runs."""
    finals: object
    """Holds back the usage record of its answer (`metering.held_finals.HeldFinals`)."""


class Settled(Protocol):
    """What a request holds of its tenant's limits."""

    async def leave(self) -> None:
        """Give back its place among the concurrent requests, before its answer ends. Idempotent."""

    def settle(self) -> None:
        """Give it back. Idempotent."""


class Exchange:
    """One request and its response.

    Only the task that serves the request may call it. Read the body with `body`, then call
    `watch`: from then on a disconnect cancels `scope`, in which the task waits for anything but the end of
    its response. Respond with exactly one of
    `respond`, a stream (`begin_stream`, `write`, `end_stream`), or `fail`, which may also end a stream. Call
    `close` on every path; it releases the reservation and the ticket, and is idempotent.
    """

    def __init__(
        self, transport: RequestTransport, batch: BatchLine | None = None, session_key: object = None
    ) -> None:
        """`session_key`: the `tenants.directory.Key` of a request that comes from the console."""
        self.transport = transport
        self.batch = batch
        self.session_key = session_key
        self.write_now = transport.write_now
        """Sends part of the stream if the client has room for it. Returns whether it was sent."""
        self._headers = transport.headers
        self._first = transport.first_headers
        self._ticket = cast("AdmissionTicket | FlorinError | None", transport.ticket)
        self.request_id = new_request_id()
        self.context = RequestContext(self.request_id)
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self.started = False
        """The response has started: its status can no longer change."""
        self.answering = False
        """The answer itself has started, and not just keep-alives before it."""
        self.streaming = False
        self.finished = False
        self.scope = CancelScope()
        """Left with ClientGoneError if the client disconnects."""
        self.reservation: Reservation | None = None
        """Counts the request and its bytes in flight; `close` releases it."""
        self.grant: Settled | None = None
        """What it holds of its tenant's limits; `close` settles it."""
        self.payload = b""
        """The body for the engine. Dropped at the first byte of the answer, after which nothing is
        retried."""
        self.dialect = OPENAI
        """How errors are worded, and which headers responses have besides Florin's."""
        self.error_events: Callable[[FlorinError], bytes] | None = None
        """The last events of a stream that fails, in the client's dialect; None: OpenAI's."""
        self._unread = True

    # -- the request

    def introduce(self) -> RequestContext:
        """Read the client's request id and trace headers, and add them to the log lines of this task."""
        if not READ_HEADERS.isdisjoint(self._first):
            self.context.read(self._headers)
        CURRENT.set(self.context)
        return self.context

    def check_overload(self) -> None:
        """Raises FlorinError if the overloaded worker refuses this request."""
        if isinstance(self._ticket, FlorinError):
            raise self._ticket

    def close_admission_ticket(self) -> None:
        """The request no longer waits for this worker."""
        if self._ticket.__class__ is AdmissionTicket:
            self._ticket.close()

    def bearer(self) -> bytes:
        """The key in `Authorization: Bearer …`; empty if there is none."""
        scheme, _, key = self._first.get(b"authorization", b"").partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else b""

    def api_key(self) -> bytes:
        """The key in `x-api-key`, as Anthropic's clients send it; empty if there is none."""
        return self._first.get(b"x-api-key", b"").strip()

    async def body(self, limit: int) -> bytes:
        """Read the whole body, decode it, and count it in the reservation as decoded. Raises FlorinError if
        it exceeds `limit` bytes: before reading any of it if its length is declared, else without reading
        the rest; and if it is compressed in a way that is not accepted."""
        decoding = decoder(self._headers) if b"content-encoding" in self._first else None
        body = self.transport.arrived()
        if decoding is not None or body is None:
            return await self._wait_for_body(limit, body, decoding)
        self._count(len(body), len(body), limit)
        self._unread = False
        return body

    async def _wait_for_body(self, limit: int, body: bytes | None, decoding: BodyDecoder | None) -> bytes:
        """`body`: of a request that is encoded, if it has arrived."""
        self.refuse_longer(limit)
        parts: list[bytes] = []
        if decoding is not None and body is not None:
            await self._decode(decoding, body, parts, limit)
            decoding.end()
            self.read()
            return b"".join(parts)
        size, more = 0, True
        self.close_admission_ticket()  # while the request waits for its client
        while more:
            received = await self.transport.read()
            if received is None:
                raise ClientGoneError
            part, more = received
            if decoding is not None:
                await self._decode(decoding, part, parts, limit)
                continue
            size += len(part)
            self._count(len(part), size, limit)
            parts.append(part)
        if decoding is not None:
            decoding.end()
        if isinstance(self._ticket, AdmissionTicket):
            self._ticket.resume()
        self.read()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _decode(self, decoding: BodyDecoder, part: bytes, parts: list[bytes], limit: int) -> None:
        """Add what a part of the body decodes to. Other requests have their turn between the steps."""
        for piece in decoding.feed(part):
            self._count(len(piece), decoding.decoded, limit)
            parts.append(piece)
            await asyncio.sleep(0)

    def _count(self, more: int, size: int, limit: int) -> None:
        """Count `more` bytes of the body, of which there are `size` so far."""
        if size > limit:
            raise too_large(limit)
        if self.reservation is not None:
            self.reservation.grow(more)

    def read(self) -> None:
        """Note that the body has been read completely."""
        self._unread = False

    def refuse_longer(self, limit: int) -> None:
        """Raises FlorinError if the declared length exceeds `limit`."""
        if self._declared_length() > limit:
            raise too_large(limit)

    def declares_body(self) -> bool:
        return self._declared_length() != 0

    def leaves_unread(self) -> bool:
        """Whether the body is unread and too long to drain."""
        return self._unread and not 0 <= self._declared_length() <= MAX_DRAIN_BYTES

    def _declared_length(self) -> int:
        return declared_length(self._first)

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
        """Cancel `scope` if the client disconnects. Call it after the body has been read."""
        self.transport.watch(self._on_disconnect)

    def check_client(self) -> None:
        """Raises ClientGoneError if the client has disconnected, even before the event loop has noticed."""
        if self.transport.gone():
            self.finished = True
            raise ClientGoneError

    def _on_disconnect(self) -> None:
        if not self.finished:
            self.scope.cancel(ClientGoneError())

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The request's."""
        return self._headers

    @property
    def arrived(self) -> bool:
        """Whether the body has been read completely."""
        return not self._unread

    def close(self) -> None:
        """Release what the request holds. Idempotent."""
        self.transport.watch(None)
        if self.grant is not None:
            self.grant.settle()
        if self.reservation is not None:
            self.reservation.release()
        self.close_admission_ticket()

    # -- the response

    async def respond(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a complete JSON response."""
        if self.grant is not None:
            await self.grant.leave()
        self.started = True
        self.context.status = status
        self.drop_payload()
        linger = self._unread and self.leaves_unread()
        more = [(k.encode(), v.encode()) for k, v in headers.items()] if headers else []
        self.finished = True
        await self.transport.respond(
            status, self._response_headers(JSON, self.extra_headers + more), body, linger=linger
        )

    async def begin_stream(self, content_type: bytes = EVENTS) -> None:
        self.answering = True
        self.drop_payload()
        if not self.started:
            await self._begin(self._response_headers(content_type, self.extra_headers))

    async def keep_alive(self, headers: Headers) -> None:
        """Send what keeps a stream's connection alive, between two events. Begins the response with these
        headers if it has not begun; its request can still be retried. Any task may call it, if the
        transport's `sent` is a number."""
        if self.finished:
            return
        if not self.started:
            await self._begin(self._response_headers(EVENTS, headers))
        self.write_now(self.dialect.keep_alive)

    async def _begin(self, headers: Headers) -> None:
        self.started = self.streaming = True
        self.context.status = 200
        await self.transport.begin(200, headers)

    def _response_headers(self, content_type: bytes, more: Headers) -> Headers:
        headers = [(b"content-type", content_type), *self.context.ids(), *more]
        return headers if self.dialect.headers is None else headers + self.dialect.headers(headers)

    async def write(self, data: bytes) -> None:
        """Send part of the stream. Blocks while the client reads more slowly than the engine writes."""
        await self.transport.write(data)

    async def end_stream(self, data: bytes = b"") -> None:
        if self.grant is not None:
            await self.grant.leave()
        self.finished = True
        await self.transport.end(data)

    async def fail(self, error: FlorinError) -> None:
        """Send the error in the form that the response still allows: a response, or an event of the
        stream."""
        if not self.started:
            body = self.dialect.error_body(error, self.request_id)
            await self.respond(self.dialect.status(error), body, error.headers)
        elif self.streaming and not self.finished:
            events = self.error_events
            await self.end_stream(error_event(error.body()) if events is None else events(error))


def new_request_id() -> str:
    """The time in milliseconds, and 64 random bits, as 12 and 16 hexadecimal digits: the ledger stores
    records in the order of their ids. The bits are fetched for many requests at once: another thread may run
    at each call of the operating system."""
    if not _random:
        data = os.urandom(8 * 256)
        _random.extend(data[start : start + 8].hex() for start in range(0, len(data), 8))
    return f"req-{time.time_ns() // 1_000_000:012x}{_random.pop()}"


_random: list[str] = []
os.register_at_fork(after_in_child=_random.clear)


def declared_length(headers: Mapping[bytes, bytes]) -> int:
    """The length of the body in bytes; -1: chunked; 0: no body."""
    length = headers.get(b"content-length")
    if length is not None:
        return int(length) if length.isdigit() else 0  # the server rejects anything else
    return -1 if b"transfer-encoding" in headers else 0


def too_large(limit: int) -> FlorinError:
    return FlorinError("body_too_large", f"The body is larger than {limit:,} bytes.")


def error_event(body: bytes) -> bytes:
    """An error object as the last event of a stream, followed by [DONE]."""
    return b"data: " + body + b"\n\ndata: [DONE]\n\n"
