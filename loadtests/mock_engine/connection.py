"""Minimal HTTP/1.1 on one socket: httptools parses, and one request is answered at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from http import HTTPStatus
from typing import Protocol, cast

import httptools

from loadtests.mock_engine.core import Core
from loadtests.mock_engine.generation import Generation
from loadtests.mock_engine.request import GenerationRequest
from loadtests.mock_engine.state import State

_HEADS = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nserver: uvicorn\r\n".encode()
    for status in HTTPStatus
}


class ConnectedEngine(Protocol):
    """The engine as seen by a connection."""

    connections: set[Connection]
    core: Core
    state: State

    @property
    def alive(self) -> bool: ...

    def handle(
        self, connection: Connection, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None: ...

    def events(self, request: GenerationRequest, request_id: str, cached: int) -> Iterator[bytes]: ...

    def die(self) -> None: ...


class Connection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_headers",
        "_parser",
        "_pending",
        "_transport",
        "_url",
        "busy",
        "engine",
        "generation",
    )

    def __init__(self, engine: ConnectedEngine) -> None:
        self.engine = engine
        self.generation: Generation | None = None
        self.busy = False
        self._parser = httptools.HttpRequestParser(self)
        self._pending: deque[tuple[str, str, dict[str, str], bytes]] = deque()
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.engine.connections.add(self)
        if not self.engine.alive:  # it died while accepting this connection
            self.drop("reset")

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.engine.connections.discard(self)
        self._transport = None
        if self.generation:
            self.generation.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.drop("reset")

    def pause_writing(self) -> None:
        if self.generation:
            self.generation.pause()

    def resume_writing(self) -> None:
        if self.generation:
            self.generation.resume()

    # httptools

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", [], []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._headers}
        path = self._url.partition(b"?")[0].decode("latin-1")
        method = self._parser.get_method().decode()
        self._pending.append((method, path, headers, b"".join(self._body)))
        self._next()

    def _next(self) -> None:
        if self._pending and not self.busy:
            self.busy = True
            self.engine.handle(self, *self._pending.popleft())

    # answering

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def answer(self, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
        kind = b"content-type: %b\r\n" % content_type if content_type else b""
        self.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (_HEADS[status], kind, len(body), body))
        self.finished()

    def finished(self) -> None:
        """The answer is complete; the connection can take its next request."""
        self.generation = None
        self.busy = False
        self._next()

    def drop(self, how: str) -> None:
        """End the connection: `close` gracefully, `kill` the whole engine, anything else by a reset."""
        if how == "kill":
            self.engine.die()
        elif self._transport is not None:
            if how == "close":
                self._transport.close()
            else:
                self._transport.abort()
