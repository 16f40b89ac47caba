"""uvicorn's HTTP/1.1 protocol with disconnect detection and early refusals.

An overloaded worker refuses a request as soon as its headers have arrived. That must be far cheaper than an
answer: at three times its capacity, a worker refuses two requests for each one it serves. So an early refusal
starts no task, looks up no key, keeps nothing of the body, and leaves the connection open. Where that is not
possible (a body that may be long, a client that waits for `100 Continue`), the request is marked, and
`Exchange.check_overload` refuses it.
"""

from __future__ import annotations

import asyncio
import os
from functools import lru_cache
from typing import Final, Protocol, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.admission.overload import AdmissionTicket
from gateway.dataplane.disconnect import GONE, disconnect_check
from gateway.dataplane.exchange import JSON, MAX_DRAIN_BYTES, TICKET, declared_length
from gateway.errors import FlorinError
from gateway.observability.request_context import RequestContext


class LoadShedding(Protocol):
    """An app that may be overloaded."""

    def issue_ticket(self, method: bytes, target: bytes) -> AdmissionTicket | FlorinError | None:
        """Admit a new request, or return the error to refuse it with. None: it needs no ticket."""

    def refuses_early(self, error: FlorinError) -> bool:
        """Whether the server may send the refusal itself. If so, the app counts it."""


class _Answered:
    """Takes the place of uvicorn's request/response cycle for a request that was refused early."""

    response_complete = True
    disconnected = False
    message_event: Final = asyncio.Event()


class HttpProtocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the original
        super().connection_made(transport)
        self._gone = disconnect_check(transport)
        self._app = cast("LoadShedding", self.config.app)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[GONE] = self._gone  # type: ignore[typeddict-unknown-key]  # ours

    def on_headers_complete(self) -> None:
        ticket = self._app.issue_ticket(self.parser.get_method(), self.url)
        if isinstance(ticket, FlorinError) and self._can_drain() and self._app.refuses_early(ticket):
            self._refuse(ticket)
            return
        if isinstance(ticket, AdmissionTicket) and not self._is_idle():
            ticket.pause()  # it waits for the request before it
        self.scope[TICKET] = ticket  # type: ignore[literal-required]  # ours
        super().on_headers_complete()

    def _is_idle(self) -> bool:
        """Whether no other request is in progress on this connection (no pipelining)."""
        return self.cycle is None or self.cycle.response_complete

    def _can_drain(self) -> bool:
        """Whether the rest of the request can be discarded and the connection be reused."""
        return (
            self._is_idle()
            and not self.expect_100_continue
            and 0 <= declared_length(self.headers) <= MAX_DRAIN_BYTES
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
        )

    def _refuse(self, error: FlorinError) -> None:
        context = RequestContext("req-" + os.urandom(12).hex())
        context.read(self.headers)
        headers = (*self.server_state.default_headers, *context.ids())
        head = b"".join([b"%b: %b\r\n" % header for header in headers])
        rest = _rest(error.code, error.message, error.retry_after)
        self.transport.write(b"HTTP/1.1 503 Service Unavailable\r\n" + head + rest)
        self.cycle = cast("RequestResponseCycle", _Answered)
        self.on_response_complete()


@lru_cache(maxsize=64)
def _rest(code: str, message: str, retry_after: int | None) -> bytes:
    """The part of the response that does not depend on the request."""
    error = FlorinError(code, message, retry_after=retry_after)
    body = error.body()
    headers = {"content-type": JSON.decode(), "content-length": str(len(body)), **error.headers}
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n" + body
