"""Finds the requests in what arrives on a client's connection, with httptools' parser.

Message framing is llhttp's in its strict mode: a request with conflicting lengths, with both
`Content-Length` and `Transfer-Encoding`, with bare line feeds, or with a method that llhttp does not know is
answered with 400, and its connection is closed. So are requests with a transfer coding other than `chunked`,
which nothing here would decode, those without exactly one `Host`, and targets that are neither a path nor an
http URL (`CONNECT`, `OPTIONS *`). HTTP/2 and WebSockets are left to proxies: a request to upgrade is answered
as if it had not asked, and its connection is closed.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Final, Protocol
from urllib.parse import unquote

import httptools

from gateway.transport.connection_limits import Connections
from gateway.transport.request_head import Headers, RequestHead

log = logging.getLogger("florin.http")

_FRAMING: Final = {b"content-length", b"transfer-encoding"}
_INVALID: Final = "The request is not valid HTTP/1.1."
_TOO_LARGE: Final = "The request's headers are too large."


class Receiver(Protocol):
    """What the connection learns of each request, in this order."""

    address: str

    def request_begins(self) -> None: ...

    def head_arrived(self, head: RequestHead) -> None: ...

    def body_arrived(self, part: bytes) -> None: ...

    def request_complete(self) -> None: ...

    def unreadable(self, code: str, message: str) -> None:
        """What arrived is not HTTP, or is too large. `code`: of `gateway.errors.CODES`. Stops the reader."""

    @property
    def reads_body(self) -> bool:
        """Whether the body of a request is arriving."""


class _StoppedError(Exception):
    """Raised in a callback, ends the parser: what follows is discarded."""


class RequestReader:
    """Mutable state of the event loop. The connection calls `feed`."""

    def __init__(self, receiver: Receiver, connections: Connections) -> None:
        self._receiver = receiver
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self.stopped = False
        """What arrives is discarded: it follows an error, or the connection's last request."""
        self.in_head = False
        """A request has begun, and its headers have not all arrived."""
        # The request that is arriving:
        self._url = b""
        self._headers: Headers = []
        self._head_bytes = 0
        self._hosts = 0
        self._expects_continue = False
        self._overhead = 0
        """Bytes since the last part of a body, or since the last request: headers, chunk sizes, trailers."""

    @property
    def unfinished(self) -> int:
        """Bytes of a request's headers that have not all arrived."""
        return max(self._overhead, self._head_bytes) if self.in_head and not self.stopped else 0

    def discard(self) -> None:
        """Stop, and drop the headers that have arrived. Not in a callback of the parser."""
        self.stopped = True
        self._url, self._headers = b"", []
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        self._overhead += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if not self.stopped:  # otherwise a callback has answered
                if isinstance(error, httptools.HttpParserCallbackError):
                    log.error("Request from %s failed", self._receiver.address, exc_info=error)
                self._receiver.unreadable("invalid_http", _INVALID)
        if self._overhead > self._connections.limits.header_bytes and not self.stopped:
            if self._receiver.reads_body:
                message = "The request's chunk headers or trailers are too large."
                self._receiver.unreadable("invalid_http", message)
            else:
                self._receiver.unreadable("headers_too_large", _TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        """Raises HttpParserError."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self.stopped:
                self._read_skipped_body(data[upgrade.args[0] :])

    def _read_skipped_body(self, data: bytes) -> None:
        """Read the body of a request that asks for an upgrade, which httptools skips. Java's client asks for
        HTTP/2 with each request."""
        framing = [b"%b: %b\r\n" % header for header in self._headers if header[0] in _FRAMING]
        self._parser = httptools.HttpRequestParser(
            SimpleNamespace(on_body=self.on_body, on_message_complete=self.on_message_complete)
        )
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
        if not self.stopped:
            self.feed(data)

    # -- httptools

    def on_message_begin(self) -> None:
        if self.stopped:
            raise _StoppedError
        self._receiver.request_begins()
        self.in_head = True
        self._url = b""
        self._headers = []
        self._head_bytes = self._hosts = 0
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            return  # a trailer
        name = name.lower()
        self._head_bytes += len(name) + len(value)
        limits = self._connections.limits
        if len(self._headers) >= limits.headers or self._head_bytes > limits.header_bytes:
            self._receiver.unreadable("headers_too_large", _TOO_LARGE)
            raise _StoppedError
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        elif name == b"transfer-encoding" and value.rstrip(b" ").lower() != b"chunked":
            self._receiver.unreadable("invalid_http", _INVALID)
            raise _StoppedError
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._overhead = 0
        parser = self._parser
        method, version = parser.get_method().decode("ascii"), parser.get_http_version()
        raw_path, query = _target(self._url)
        hosts = {"1.1": (1,), "1.0": (0, 1)}.get(version, ())
        if not raw_path.startswith(b"/") or self._hosts not in hosts:
            self._receiver.unreadable("invalid_http", _INVALID)
            raise _StoppedError
        self.in_head = False
        head = RequestHead(
            method=method,
            path=unquote(raw_path.decode("ascii")),
            raw_path=raw_path,
            query=query,
            headers=self._headers,
            version=version,
            keep_alive=version == "1.1" and parser.should_keep_alive() and not parser.should_upgrade(),
            expects_continue=self._expects_continue and version == "1.1",
        )
        self._receiver.head_arrived(head)
        if self.stopped:
            raise _StoppedError

    def on_body(self, body: bytes) -> None:
        if self.stopped:
            return  # of a request that follows the connection's last
        self._overhead = 0
        self._receiver.body_arrived(body)

    def on_message_complete(self) -> None:
        self._overhead = 0
        if self._parser.should_upgrade() and any(name in _FRAMING for name, _ in self._headers):
            return
        self._receiver.request_complete()


def _target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request's target. Without a path, the target is invalid."""
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        return b"", b""
    return url.path or (b"/" if url.host else b""), url.query or b""
