"""A client's HTTP/1.1 connection: uvicorn's protocol class (`http=`).

Requests to the data plane become an `HttpRequest`, served by the application in a task of their own. All
others go through ASGI, with uvicorn's own request/response cycle.

An overloaded worker refuses a request as soon as its headers have arrived. That must be far cheaper than an
answer: at three times its capacity, a worker refuses two requests for each one it serves. So an early refusal
starts no task, looks up no key, keeps nothing of the body, and leaves the connection open. Where that is not
possible (a body that may be long, a client that waits for `100 Continue`), the request is marked, and
`Exchange.check_overload` refuses it.

`RequestReader` finds the requests in what arrives. The connection starts them in their order and writes the
responses.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import sys
import termios
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, Protocol, cast

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from gateway.config.trusted_proxies import TrustedProxies
from gateway.errors import FlorinError
from gateway.transport.asgi_cycle import AsgiCycle, asgi_cycle
from gateway.transport.connection_limits import Connections, Mark, Phase
from gateway.transport.disconnect import disconnect_check
from gateway.transport.http_request import STATUS_LINES, HttpRequest
from gateway.transport.request_head import Headers, RepeatedHead, RequestHead, repeatable
from gateway.transport.request_reader import RequestReader

log = logging.getLogger("florin.http")

_MAX_PIPELINED: Final = 100
"""Requests on a connection that may wait for the response to another. Clients that pipeline send a few."""
_LINGER_SECONDS: Final = 2.0
_UNREAD: Final = 64 * 1024
"""Unread bytes in the kernel above which a client counts as one that does not read."""


class Application(Protocol):
    """What the connection needs of the application. It is an ASGI application, too."""

    connections: Connections

    def issue_ticket(self, head: RequestHead, connection: ClientConnection, *, waits: bool) -> object:
        """Called when the headers of a request have arrived. `waits`: for the response to another request on
        its connection. Returns what `HttpRequest.ticket` will be."""

    def early_refusal(self, ticket: object, path: str, headers: Headers) -> tuple[int, bytes] | None:
        """Status and response, without the status line and the date, that refuse a request whose body can be
        discarded. None: serve the request."""

    def error_body(self, path: str, error: FlorinError) -> bytes:
        """The body of an error response for a request to this path; empty: it is not known."""

    def serves(self, path: str) -> bool:
        """Whether `serve` takes the request; otherwise it is for ASGI."""

    def serve(self, request: HttpRequest) -> Coroutine[Any, Any, None]:
        """Serve a request to the data plane."""


class _Refused:
    """A request that was refused early: its body is discarded."""

    response_started = response_complete = True
    keep_alive = True

    def __init__(self) -> None:
        self.received = 0
        self.more = True

    def body_received(self, part: bytes) -> None:
        self.received += len(part)

    def body_complete(self) -> None:
        self.more = False


def unread(transport: asyncio.Transport) -> int:
    """Bytes that the kernel keeps because the client does not read them; 0 for what is merely on its way."""
    connection = transport.get_extra_info("socket")
    if connection is None or transport.is_closing():
        return 0
    try:
        queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    size = int.from_bytes(queued, sys.byteorder)
    return size if size >= _UNREAD else 0


class ClientConnection(asyncio.Protocol):
    """Mutable state of the event loop. uvicorn creates it and calls `shutdown`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = cast("Application", config.app)
        self._asgi = config.loaded_app
        self._server_state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._connections = self._app.connections
        self._reader = RequestReader(self, self._connections)
        self._transport = cast("asyncio.Transport", None)
        self.flow = cast("FlowControl", None)
        self.address = ""
        """The peer's: the client, or a proxy."""
        self._proxies: TrustedProxies | None = None
        """Set if the peer is a trusted proxy."""
        self.mark: Mark | None = None
        self.written = 0
        """Bytes."""
        self._requests = 0
        """Requests that have begun."""
        self._head_counts = False
        """Its unfinished head is among `Connections.heads`."""
        self._repeated: RepeatedHead | None = None
        """The head of the last request that arrived in one piece."""
        self._current: HttpRequest | AsgiCycle | _Refused | None = None
        """The request that arrived last. It may still be arriving, and may wait for those before it."""
        self._serving: HttpRequest | AsgiCycle | None = None
        """The request that was started last."""
        self._waiting: deque[HttpRequest | AsgiCycle] = deque()
        """Pipelined requests."""
        self._default_headers: Headers | None = None
        self._default_head = b""
        """The former, as bytes."""
        self._closing = False
        """Nothing more is sent."""
        self.refused = False
        """The last answer was that the key is unknown, or that it is over a limit."""

    def __repr__(self) -> str:
        return f"<ClientConnection {self.address} requests={self._requests}>"

    def client(self, headers: Headers) -> str:
        """Address of the client of a request with these headers."""
        return self._proxies.client(self.address, headers).address if self._proxies else self.address

    def _forwarded(self, headers: Headers) -> dict[str, Any]:
        """The parts of a request's ASGI scope that a trusted proxy knows better than the socket does."""
        if self._proxies is None:
            return {}
        client = self._proxies.client(self.address, headers)
        known: dict[str, Any] = {"client": (client.address, 0)}
        return known | {"scheme": client.scheme} if client.scheme else known

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        self.flow = FlowControl(transport)
        remote = get_remote_addr(transport)
        self.address = remote[0] if remote else ""
        proxies = self._connections.limits.proxies
        if proxies is not None and proxies.trusts(self.address):
            self._proxies = proxies
        self.gone = disconnect_check(transport)
        if not self._connections.admit(self):
            self._refuse("too_many_connections", "Too many connections.")
            return
        self._server_state.connections.add(self)  # type: ignore[arg-type]  # it only calls `shutdown`

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._connections.forget(self)
        self._server_state.connections.discard(self)
        self._reader.stopped = True
        if self._serving is not None:
            self._serving.lost()
        self._waiting.clear()
        self.flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.stopped:
            return
        before, requests = self._current, self._requests
        idle = not reader.in_head and (before is None or (before.response_complete and not before.more))
        if idle and self._repeated is not None and not self._waiting:
            body = self._repeated.body(data)
            if body is not None:
                self._requests += 1
                self.head_arrived(self._repeated.head)
                if isinstance(self._current, HttpRequest):
                    self._current.arrived_whole(body)
                else:
                    self.body_arrived(body)
                    self.request_complete()
                return
        reader.feed(data)
        if unfinished := reader.unfinished:
            self._head_counts = True
            self._connections.head_grows(self, unfinished)
        elif self._head_counts:
            self._head_counts = False
            self._connections.heads.finish(self)
        arrived = self._current
        if idle and self._requests == requests + 1 and isinstance(arrived, HttpRequest) and not arrived.more:
            self._repeated = repeatable(data, arrived.head)

    def eof_received(self) -> None:
        """A client that closes only its sending side counts as disconnected."""

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()

    # -- limits

    def progress(self, now: float) -> Mark:
        """See `connection_limits.Connection`."""
        unsent = self._transport.get_write_buffer_size() + unread(self._transport)
        if unsent:
            return Mark(Phase.READER, 0, self.written - unsent, now)
        current = self._current
        phase, received = Phase.SERVER, 0
        if self.is_closing():
            pass
        elif current is None:
            phase = Phase.HEAD
        elif current.more and not self.flow.read_paused:
            phase, received = Phase.BODY, current.received
        elif current.response_complete and not self._waiting:
            phase = Phase.HEAD if self._reader.in_head else Phase.IDLE
        return Mark(phase, self._requests, received, now)

    def expire(self, phase: Phase) -> None:
        """See `connection_limits.Connection`."""
        if phase is Phase.HEAD and self._reader.in_head:
            self._refuse("request_timeout", "The request's headers did not arrive in time.")
        elif phase is Phase.BODY:
            self._refuse("request_timeout", "The request's body did not arrive in time.")
        elif phase is Phase.READER:
            self._transport.abort()  # what it has not read is lost
        else:
            self._transport.close()

    def refuse_head(self) -> None:
        """See `unfinished_heads.Holder`."""
        self._connections.on_close("heads")
        self._refuse("too_many_connections", "Too many requests whose headers have not all arrived.")
        self._reader.discard()

    # -- what the reader calls

    def request_begins(self) -> None:
        self._requests += 1

    def head_arrived(self, head: RequestHead) -> None:
        """Create the request, and start it if no other is before it."""
        before = self._current
        idle = before is None or (before.response_complete and not self._waiting)
        ticket = self._app.issue_ticket(head, self, waits=not idle)
        if idle and ticket.__class__ is FlorinError and head.keep_alive and not head.expects_continue:
            refusal = self._app.early_refusal(ticket, head.path, head.headers)
            if refusal is not None:
                status, rest = refusal
                self.write(STATUS_LINES[status] + self.default_head() + rest)
                self._current = _Refused()
                self._server_state.total_requests += 1
                return
        request: HttpRequest | AsgiCycle
        if self._app.serves(head.path):
            request = HttpRequest(self, head, ticket)
        else:
            request = asgi_cycle(
                {
                    "http_version": head.version,
                    "headers": head.headers,
                    "state": self._app_state.copy(),
                    "method": head.method,
                    "path": head.path,
                    "raw_path": head.raw_path,
                    "query_string": head.query,
                    **self._forwarded(head.headers),
                },
                self._transport,
                sender=self,
                server=self._server_state,
                expects_continue=head.expects_continue,
                keep_alive=head.keep_alive,
                on_response=self._next,
            )
        self._current = request
        if idle:
            self._start(request)
            return
        self.flow.pause_reading()
        self._waiting.append(request)
        if len(self._waiting) > _MAX_PIPELINED:
            self._connections.on_close("pipelining")
            self._reader.stopped = True
            self._transport.abort()

    def body_arrived(self, part: bytes) -> None:
        if self._current is not None:
            self._current.body_received(part)

    def request_complete(self) -> None:
        if self._current is not None:
            self._current.body_complete()
            self._reader.stopped = not self._current.keep_alive

    def unreadable(self, code: str, message: str) -> None:
        """Answer a request that cannot be read, and close the connection."""
        self._connections.on_close(code)
        self._refuse(code, message)

    @property
    def reads_body(self) -> bool:
        """Whether the body of a request is arriving."""
        return self._current is not None and self._current.more

    # -- requests and their responses

    def _start(self, request: HttpRequest | AsgiCycle) -> None:
        self._serving = request
        if isinstance(request, HttpRequest):
            task = self._loop.create_task(self._serve(request))
        else:
            task = self._loop.create_task(request.run_asgi(self._asgi))
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)

    async def _serve(self, request: HttpRequest) -> None:
        try:
            await self._app.serve(request)
        except Exception:  # a defect; `finally` closes the connection
            log.exception("%s %s failed", request.method, request.path)
        finally:
            if not (request.response_complete or request.disconnected):
                self._transport.abort()

    def response_complete(self, request: HttpRequest) -> None:
        if not request.keep_alive:
            self.close()
        self._next()

    def _next(self) -> None:
        """A response is complete: start the next request."""
        self._server_state.total_requests += 1
        if self.is_closing():
            return
        if self._waiting:
            self._start(self._waiting.popleft())
        if not self._waiting:
            self.flow.resume_reading()

    def shutdown(self) -> None:
        """Close the connection as soon as its requests have been answered."""
        if self._current is None or (self._current.response_complete and not self._waiting):
            self._transport.close()
            return
        self._current.keep_alive = False
        for request in self._waiting:
            request.keep_alive = False

    def write(self, data: bytes) -> None:
        if self._closing or self._transport.is_closing():
            return
        self.written += len(data)
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection after what was written. A client that is still sending could see a connection
        reset instead of it, so what it sends is discarded for a moment."""
        if not (self._closing or self._reader.in_head or (self._current is not None and self._current.more)):
            self._transport.close()
        elif not self.is_closing():
            self._reader.stopped = self._closing = True
            self.flow.resume_reading()
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._loop.call_later(_LINGER_SECONDS, self._transport.close)

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def default_head(self) -> bytes:
        """The headers of every response: the date. uvicorn replaces them every second."""
        headers = self._server_state.default_headers
        if headers is not self._default_headers:
            self._default_headers = headers
            self._default_head = b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._default_head

    def _refuse(self, code: str, message: str) -> None:
        """Answer with an error if the client cannot take it for the response to another request. Otherwise
        close the connection: after those responses if their requests have arrived."""
        self._reader.stopped = True
        current = self._current
        if current is not None and current.more and (self._waiting or current.response_started):
            self._transport.abort()
            return
        if current is not None and not current.more and not current.response_complete:
            current.keep_alive = False
            return
        error = FlorinError(code, message)
        path = current.path if isinstance(current, HttpRequest) and current.more else ""
        body = self._app.error_body(path, error)
        self.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINES[error.status] + self.default_head(), len(body), body)
        )
        self.close()
        if self._serving is not None:
            self._serving.lost()
