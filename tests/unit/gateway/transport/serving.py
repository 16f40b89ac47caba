"""A small application behind `ClientConnection`, on real sockets, and a client that writes what it likes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from uvicorn.server import ServerState

from gateway.config import Settings
from gateway.dataplane.asgi import Receive, Scope, Send
from gateway.errors import FlorinError
from gateway.transport.client_connection import ClientConnection
from gateway.transport.connection_limits import ConnectionLimits, Connections, connection_limits
from gateway.transport.http_request import Headers, HttpRequest
from gateway.transport.request_head import RequestHead
from tests.support.waiting import PATIENCE_S, until

PATIENCE = PATIENCE_S


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return json.loads(self.body)["error"]["code"]


@dataclass
class App:
    """Answers with what it was asked. `/v1/` is served directly, anything else through ASGI."""

    limits: ConnectionLimits = field(default_factory=lambda: connection_limits(Settings()))
    served: list[tuple[str, str, bytes]] = field(default_factory=list)
    """Method, path and body of each request that arrived completely."""
    closed: list[str] = field(default_factory=list)
    """Reasons for which connections were closed."""
    tickets: list[tuple[str, str, bool]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Paths of requests that could not be read; empty: not known."""
    lost: list[str] = field(default_factory=list)
    """Paths of requests whose clients disconnected."""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends requests to paths that end with `/slow`."""
    refusal: tuple[int, bytes] | None = None
    state: ServerState = field(default_factory=ServerState)
    made: list[ClientConnection] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connections = Connections(self.limits, self.closed.append)

    def issue_ticket(self, head: RequestHead, connection: ClientConnection, *, waits: bool) -> object:
        self.tickets.append((head.method, head.path, waits))
        return None if self.refusal is None else FlorinError("overloaded", "This worker is overloaded.")

    def error_body(self, path: str, error: FlorinError) -> bytes:
        self.failed.append(path)
        return error.body()

    def early_refusal(self, _ticket: object, _path: str, _headers: Headers) -> tuple[int, bytes] | None:
        return self.refusal

    def serves(self, path: str) -> bool:
        return path.startswith("/v1/")

    async def serve(self, request: HttpRequest) -> None:
        if request.path == "/v1/unread":
            await request.respond(401, [], b"no")
            return
        if request.path == "/v1/refused":
            await request.respond(413, [], b"no", linger=True)
            return
        if request.path == "/v1/defect":
            raise RuntimeError("a defect")
        body, more = b"", True
        while more:
            received = await request.read()
            if received is None:
                self.lost.append(request.path)
                return
            body, more = body + received[0], received[1]
        self.served.append((request.method, request.path, body))
        if request.path.endswith("/slow"):
            await self.release.wait()
        if request.path == "/v1/stream":
            await request.begin(200, [])
            for part in (b"a", b"", b"bc"):
                await request.write(part)
            await request.end(b"d")
        elif request.path == "/v1/flood":
            await request.begin(200, [])
            while not request.disconnected:
                await request.write(b"x" * 65536)
                await asyncio.sleep(0)
            self.lost.append(request.path)
        else:
            await request.respond(200, [], request.path.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", not scope["path"].endswith("/unread")
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.lost.append(scope["path"])
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.served.append((scope["method"], scope["path"], body))
        if scope["path"].endswith("/slow"):
            await self.release.wait()
        answer = scope["path"].encode()
        headers = [] if scope["path"] == "/stream" else [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer[:3], "more_body": True})
        await send({"type": "http.response.body", "body": answer[3:]})

    def connect(self) -> ClientConnection:
        config = SimpleNamespace(app=self, loaded_app=self, asgi_version="3.0")
        self.made.append(ClientConnection(cast("Any", config), self.state, {}))
        return self.made[-1]


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def drip(self, data: bytes) -> None:
        """Send byte by byte, each in a packet of its own."""
        for byte in data:
            await self.send(bytes([byte]))
            await asyncio.sleep(0)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(PATIENCE):
            data = b""
            with contextlib.suppress(ConnectionError):
                while part := await self.reader.read(65536):
                    data += part
            return data

    async def response(self, *, head: bool = False) -> Response:
        async with asyncio.timeout(PATIENCE):
            raw = await self.reader.readuntil(b"\r\n\r\n")
            first, _, lines = raw.decode().partition("\r\n")
            headers = dict(line.split(": ", 1) for line in lines.split("\r\n") if line)
            length = 0 if head else int(headers.get("content-length", 0))
            return Response(int(first.split(" ")[1]), headers, await self.reader.readexactly(length))

    async def responses(self) -> list[Response]:
        """All until the server closes."""
        found = []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                found.append(await self.response())
        return found


@contextlib.asynccontextmanager
async def serving(app: App, **options: Any) -> AsyncIterator[str]:
    """Serves `app` on a free port; yields its address."""
    server = await asyncio.get_running_loop().create_server(app.connect, "127.0.0.1", 0, **options)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in list(app.state.connections):
            cast("Any", connection)._transport.abort()
        tasks = list(app.state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, asyncio.sleep(0), return_exceptions=True)
        await until(lambda: not app.connections.open)


@contextlib.asynccontextmanager
async def client(address: str, **options: Any) -> AsyncIterator[Client]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), **options)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)
