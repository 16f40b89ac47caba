"""GET requests to engines, for probes and scrapes: thousands a minute in a large fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast

from gateway.transport.engine_connection import EngineConnection, EngineConnectionError
from gateway.transport.engine_pool import Address, EnginePool, address

MAX_HEAD_VALUE: Final = 64
"""Bytes of a date."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    date: str
    """The header; empty: none."""
    fresh: bool
    """It came on a new connection: the one that was kept is gone, perhaps with its process."""


class DatedConnection(EngineConnection):
    """Keeps the `date` of a response, too."""

    __slots__ = ("date",)

    def __init__(self) -> None:
        super().__init__()
        self.date = b""

    async def get(self, head: bytes, limit: int, timeout: float) -> bytes:
        """Send a request without a body. Returns the whole body of the response, within `timeout` seconds.
        Raises EngineConnectionError, ResponseTooLargeError, TimeoutError."""
        self.date = b""
        timer = asyncio.get_running_loop().call_later(timeout, self._fail, TimeoutError())
        try:
            await self.send(head, b"")
            return b"" if self.complete and not self._buffer else await self.read(limit)
        finally:
            timer.cancel()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(name) == 4 and name.lower() == b"date":
            self.date = value[:MAX_HEAD_VALUE]


class EngineGetter:
    """Follows no redirect, and keeps one connection or more to each engine. All on the event loop."""

    def __init__(self, pool: EnginePool, authorization: Callable[[], str] = str) -> None:
        """`pool`: of DatedConnections. `authorization` returns the header for engines; empty: none."""
        self._pool = pool
        self._authorization = authorization

    async def get(self, url: str, path: str, *, timeout: float, limit: int) -> Answer:
        """Get `path` from the engine at `url`, within `timeout` seconds. Raises OSError (also TimeoutError,
        ssl.SSLError, ResponseTooLargeError above `limit` bytes)."""
        where = address(url)
        head = _head(where, path, self._authorization())
        kept = self._pool.idle(where)
        if kept is not None:
            try:
                return await self._exchange(where, kept, head, limit, timeout, fresh=False)
            except EngineConnectionError:
                if kept.status:
                    raise
                # The engine closed it just as it was used.
        async with asyncio.timeout(timeout):
            connection = await self._pool.connect(where, timeout=timeout)
            return await self._exchange(where, connection, head, limit, timeout, fresh=True)

    async def _exchange(
        self,
        where: Address,
        connection: EngineConnection,
        head: bytes,
        limit: int,
        timeout: float,
        *,
        fresh: bool,
    ) -> Answer:
        dated = cast("DatedConnection", connection)
        try:
            body = await dated.get(head, limit, timeout)
        finally:
            self._pool.release(where, connection)
        return Answer(connection.status, body, dated.date.decode("latin-1"), fresh)

    def close(self) -> None:
        """Close all kept connections."""
        self._pool.close()


@lru_cache(maxsize=4096)
def _head(where: Address, path: str, authorization: str) -> bytes:
    lines = [
        b"GET %b%b HTTP/1.1" % (where.prefix, path.encode()),
        b"host: " + where.host_header,
        *([b"authorization: " + authorization.encode()] if authorization else []),
    ]
    return b"\r\n".join([*lines, b"", b""])
