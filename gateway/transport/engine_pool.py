"""Keep-alive connections to engines, by engine."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from gateway.transport.engine_connection import EngineConnection

IDLE_SECONDS = 4.0
"""Time after which an unused connection is closed. vLLM closes its own after 5 s; a request that meets the
closing would fail."""


@dataclass(frozen=True, slots=True, eq=False)
class Address:
    """Compared by identity, and so hashed at once: `address` makes one for each URL."""

    host: str
    port: int
    tls: bool
    prefix: bytes
    """Path that precedes every request's; empty for most engines."""
    host_header: bytes


@lru_cache(maxsize=4096)
def address(url: str) -> Address:
    """Where an engine listens, from its registered URL."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    host = parts.hostname or ""
    host = host if host.isascii() else host.encode("idna").decode()
    shown = f"[{host}]" if ":" in host else host
    header = f"{shown}:{parts.port}" if parts.port else shown
    return Address(
        host=host,
        port=parts.port or (443 if tls else 80),
        tls=tls,
        prefix=parts.path.rstrip("/").encode("ascii", "ignore"),
        host_header=header.encode(),
    )


@dataclass(slots=True)
class EnginePool:
    """Opens connections to engines and keeps idle ones. Take one for each exchange, and `release` it.

    There is no limit: how many requests run on an engine is the router's decision. All on the event loop.
    """

    tls: ssl.SSLContext | None = None
    """For engines with an https URL; None: the system's authorities."""
    clock: Callable[[], float] = time.monotonic
    kind: Callable[[], EngineConnection] = EngineConnection
    """Makes a connection's protocol."""
    _idle: dict[Address, deque[EngineConnection]] = field(default_factory=dict)
    """Oldest first."""
    in_use: int = 0
    _sweeping: asyncio.TimerHandle | None = None

    def idle(self, where: Address) -> EngineConnection | None:
        """An idle connection, now the caller's; None if there is none: `connect`."""
        idle = self._idle.get(where)
        while idle:
            connection = idle.pop()  # the one used last is the least likely to be closed
            if not connection.closed and self.clock() - connection.idle_since < IDLE_SECONDS:
                self.in_use += 1
                return connection
            connection.close()
        return None

    async def connect(self, where: Address, *, timeout: float) -> EngineConnection:
        """A new connection. Raises OSError (also TimeoutError and ssl.SSLError)."""
        async with asyncio.timeout(timeout):
            _, connection = await asyncio.get_running_loop().create_connection(
                self.kind,
                where.host,
                where.port,
                ssl=self._context() if where.tls else None,
                server_hostname=where.host if where.tls else None,
            )
        self.in_use += 1
        return connection

    def _context(self) -> ssl.SSLContext:
        if self.tls is None:
            self.tls = ssl.create_default_context()
        return self.tls

    def release(self, where: Address, connection: EngineConnection) -> None:
        """Give a connection back: it is kept if another exchange can use it, and closed otherwise."""
        self.in_use -= 1
        if not connection.reusable:
            connection.close()
            return
        connection.idle_since = self.clock()
        idle = self._idle.get(where)
        if idle is None:
            idle = self._idle[where] = deque()
        idle.append(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(IDLE_SECONDS / 2, self._sweep)

    def _sweep(self) -> None:
        """Close connections that have been idle for too long."""
        self._sweeping = None
        oldest = self.clock() - IDLE_SECONDS
        for where, idle in list(self._idle.items()):
            while idle and (idle[0].closed or idle[0].idle_since <= oldest):
                idle.popleft().close()
            if not idle:
                del self._idle[where]
        if self._idle:
            self._sweeping = asyncio.get_running_loop().call_later(IDLE_SECONDS / 2, self._sweep)

    def close(self) -> None:
        """Close all idle connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()
