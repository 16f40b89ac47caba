"""The agent's HTTP server, through which the gateway requests versions' files."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from adapters.engine_agent.staging import Cache, StageError

log = logging.getLogger(__name__)

_BODY_BYTES = 64 * 1024
_CLOSE_SECONDS = 1.0
"""Seconds for open requests at shutdown. Their downloads are already cancelled."""


@dataclass(slots=True)
class AgentServer:
    """Serves two routes. POST /stage {digest, size_bytes} → {path} requires the bearer token that the gateway
    derived for this engine. GET /health → `state()` is open to anyone."""

    cache: Cache
    state: Callable[[], dict[str, Any]]
    token: str = ""
    """Token of the gateway that this host is registered with; empty before registration."""
    port: int = 0
    tls: ssl.SSLContext | None = None
    busy: int = 0
    """Number of open requests for files."""
    _runner: web.AppRunner | None = field(default=None)
    _servers: list[asyncio.Server] = field(default_factory=list)

    async def open(self, host: str, port: int, taken_over: tuple[int, ...] = ()) -> None:
        """Start listening; port 0 picks a free port. `taken_over`: descriptors of inherited sockets to use
        instead. Raises OSError."""
        app = web.Application(client_max_size=_BODY_BYTES)
        app.router.add_post("/stage", self._stage)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=_CLOSE_SECONDS
        )
        await self._runner.setup()
        loop, answer = asyncio.get_running_loop(), self._runner.server
        assert answer
        if not taken_over:
            self._servers.append(await loop.create_server(answer, host or None, port, ssl=self.tls))
        for descriptor in taken_over:
            listener = socket.socket(fileno=descriptor)
            self._servers.append(await loop.create_server(answer, sock=listener, ssl=self.tls))
        self.port = self._servers[0].sockets[0].getsockname()[1]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors of its listening sockets."""
        return tuple(sock.fileno() for server in self._servers for sock in server.sockets)

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        if self._runner:
            await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return _answer(200, self.state())

    async def _stage(self, request: web.Request) -> web.Response:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        known = self.token and kind.lower() == "bearer"
        shown = given.encode(errors="surrogateescape")  # a header may contain any bytes
        if not (known and hmac.compare_digest(shown, self.token.encode())):
            return _refusal(401, "This agent serves only the gateway that it is registered with.")
        try:
            body = orjson.loads(await request.read())
            digest, size = str(body["digest"]), int(body["size_bytes"])
        except (ValueError, LookupError, TypeError):
            return _refusal(400, "The body must be an object with digest and size_bytes.")
        self.busy += 1
        try:
            path = await self.cache.stage(digest, size)
        except StageError as error:
            return _refusal(503, str(error))
        finally:
            self.busy -= 1
        return _answer(200, {"path": str(path)})


def _refusal(status: int, message: str) -> web.Response:
    return _answer(status, {"error": {"message": message}})


def _answer(status: int, body: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")
