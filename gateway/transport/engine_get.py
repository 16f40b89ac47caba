"""GET requests to engines, for probes and scrapes: thousands a minute in a large fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, NamedTuple, cast

from gateway.transport.engine_connection import (
    EngineConnection,
    EngineConnectionError,
    ResponseTooLargeError,
)
from gateway.transport.engine_pool import Address, EnginePool, address

MAX_HEAD_VALUE: Final = 64
"""Bytes of a date."""


class Answer(NamedTuple):
    status: int
    body: bytes
    date: str
    """The header; empty: none."""
    fresh: bool
    """It came on a new connection: the one that was kept is gone, perhaps with its process."""


class DatedConnection(EngineConnection):
    """Keeps the `date` of a response, too, and can do without a task."""

    __slots__ = ("_done", "_limit", "date")

    def __init__(self) -> None:
        super().__init__()
        self.date = b""
        self._lessons = 0  # the date is read by the parser
        self._limit = 0
        self._done: Callable[[bytes | Exception], None] | None = None
        """Gets the body of the response, or why there is none."""

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

    def ask(self, head: bytes, limit: int, done: Callable[[bytes | Exception], None]) -> None:
        """Like `get` without a timeout, but `done` is called with the result, once."""
        self.date = b""
        self._limit, self._done = limit, done
        self._begin()
        self._transport.write(head)

    def give_up(self) -> None:
        """The answer has not come in time."""
        self._fail(TimeoutError())

    def _notify(self) -> None:
        if self._done is None:
            super()._notify()
            return
        outcome: bytes | Exception | None = self._error
        if self._buffered > self._limit:
            outcome = ResponseTooLargeError(f"the response is longer than {self._limit:,} bytes")
        elif outcome is None and self.complete:
            outcome = self._take() if self._buffer else b""
        elif outcome is None:
            return
        done, self._done = self._done, None
        done(outcome)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 4 and name.lower() == b"date":
            self.date = value[:MAX_HEAD_VALUE]
        else:
            super().on_header(name, value)


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

    def ask(
        self, url: str, path: str, *, limit: int, done: Callable[[Answer | Exception], None]
    ) -> DatedConnection | None:
        """Get `path` without a task, if a connection to the engine is kept: `done` is called with the answer,
        or what `get` would have raised. Returns the connection; whoever has waited long enough calls its
        `give_up`. None: there is none."""
        where = address(url)
        kept = cast("DatedConnection | None", self._pool.idle(where))
        if kept is not None:
            head = _head(where, path, self._authorization())
            kept.ask(head, limit, partial(self._answered, where, kept, done))
        return kept

    def _answered(
        self,
        where: Address,
        connection: DatedConnection,
        done: Callable[[Answer | Exception], None],
        body: bytes | Exception,
    ) -> None:
        self._pool.release(where, connection)
        if isinstance(body, Exception):
            done(body)
        else:
            done(Answer(connection.status, body, connection.date.decode("latin-1"), fresh=False))

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
