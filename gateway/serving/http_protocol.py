"""uvicorn's HTTP/1.1 on one connection, and what Florin adds: it knows whether the client has hung up, and
what an overloaded worker refuses, it refuses as soon as a request's headers are here.

Such a refusal must cost a small part of what an answer costs: at three times its capacity, a worker refuses
two requests for each that it serves. So there is no task, no key is looked up, nothing of the body is kept,
and the connection stays. Where that would not do (a body that may be long, a client that waits for leave to
send it) the request is marked, and refused on the usual way.
"""

from __future__ import annotations

import asyncio
import os
from functools import lru_cache
from typing import Final, Protocol, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.admission.overload import Beginning
from gateway.dataplane.disconnect import GONE, look
from gateway.dataplane.exchange import BEGINNING, JSON, READ_OVER, declared_length
from gateway.errors import FlorinError
from gateway.observability.request_context import RequestContext


class Overloadable(Protocol):
    """An app that may have too much to do."""

    def begin(self, method: bytes, target: bytes) -> Beginning | FlorinError | None:
        """A request has come. FlorinError: it is to be refused. None: it is none of those that are."""

    def refuses_early(self, error: FlorinError) -> bool:
        """Whether the server may refuse the request by itself. If so, it is counted."""


class _Answered:
    """Stands where uvicorn keeps the request that it answers: this one has its answer."""

    response_complete = True
    disconnected = False
    message_event: Final = asyncio.Event()


class HttpProtocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the original
        super().connection_made(transport)
        self._gone = look(transport)
        self._app = cast("Overloadable", self.config.app)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[GONE] = self._gone  # type: ignore[typeddict-unknown-key]  # ours

    def on_headers_complete(self) -> None:
        beginning = self._app.begin(self.parser.get_method(), self.url)
        if isinstance(beginning, FlorinError) and self._reads_over() and self._app.refuses_early(beginning):
            self._refuse(beginning)
            return
        if isinstance(beginning, Beginning) and not self._is_idle():
            beginning.pause()  # it waits for the one before it
        self.scope[BEGINNING] = beginning  # type: ignore[literal-required]  # ours
        super().on_headers_complete()

    def _is_idle(self) -> bool:
        """Whether this request is the only one here: it is not pipelined."""
        return self.cycle is None or self.cycle.response_complete

    def _reads_over(self) -> bool:
        """Whether the rest of the request can be read and thrown away, and its connection be used again."""
        return (
            self._is_idle()
            and not self.expect_100_continue
            and 0 <= declared_length(self.headers) <= READ_OVER
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
    """What all such refusals have in common."""
    error = FlorinError(code, message, retry_after=retry_after)
    body = error.body()
    headers = {"content-type": JSON.decode(), "content-length": str(len(body)), **error.headers}
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n" + body
