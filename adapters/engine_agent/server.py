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

from adapters.engine_agent.artifact_download import StageError
from adapters.engine_agent.staging import Cache

log = logging.getLogger(__name__)

_BODY_BYTES = 64 * 1024
_LONGEST_NOTICE = 86_400.0
_CLOSE_SECONDS = 1.0
"""Seconds for open requests at shutdown. Their downloads are already cancelled."""


@dataclass(slots=True)
class AgentServer:
    """Serves the gateway and this host.

    With the bearer token that the gateway derived for this engine: POST /stage {digest, size_bytes} → {path};
    POST /restart → {}. With that token or this host's own key: POST /spot-notice {seconds} → `state()`. GET
    /health → `state()` is open to anyone."""

    cache: Cache
    state: Callable[[], dict[str, Any]]
    spot_notice: Callable[[float], None]
    """Drain and stop the engine within that many seconds."""
    restart: Callable[[], bool]
    """Restart the engine; False: it is not running, or stops."""
    is_own_key: Callable[[bytes], bool]
    """Whether this is the key of this host at the gateway."""
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
        app.router.add_post("/restart", self._restart)
        app.router.add_post("/spot-notice", self._spot_notice)
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
        if not self._is_gateway(_bearer(request)):
            return _not_the_gateway()
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

    async def _restart(self, request: web.Request) -> web.Response:
        if not self._is_gateway(_bearer(request)):
            return _not_the_gateway()
        return _answer(200, {}) if self.restart() else _refusal(409, "The engine is not running, or stops.")

    async def _spot_notice(self, request: web.Request) -> web.Response:
        given = _bearer(request)
        if not (self._is_gateway(given) or (given and self.is_own_key(given))):
            return _refusal(401, "A spot notice needs this host's own key, the one in its --key-file.")
        try:
            seconds = float(orjson.loads(await request.read())["seconds"])
        except (ValueError, LookupError, TypeError):
            seconds = -1.0
        if not 0 <= seconds <= _LONGEST_NOTICE:
            return _refusal(400, "The body must be an object with seconds, from 0 to 86400.")
        log.warning("Spot notice: this host ends in %.0f s", seconds)
        self.spot_notice(seconds)
        return _answer(200, self.state())

    def _is_gateway(self, given: bytes) -> bool:
        return bool(self.token) and hmac.compare_digest(given, self.token.encode())


def _bearer(request: web.Request) -> bytes:
    """The token of the request; empty: none. A header may contain any bytes."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    return given.encode(errors="surrogateescape") if kind.lower() == "bearer" else b""


def _not_the_gateway() -> web.Response:
    return _refusal(401, "This agent serves only the gateway that it is registered with.")


def _refusal(status: int, message: str) -> web.Response:
    return _answer(status, {"error": {"message": message}})


def _answer(status: int, body: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")
