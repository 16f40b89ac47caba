"""Connects to a Redis or Valkey server and translates its errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from adapters.errors import StoreUnavailableError
from adapters.store.redis.discovery import Seeds
from adapters.store.redis.tls import TlsConnection

_PAUSED_SECONDS = 0.25
"""A timer that fires so late shows that the process was not running."""


async def bounded(reply: object, timeout: float) -> Any:
    """Return the reply; raise StoreUnavailableError after `timeout` seconds."""
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    with unavailable():
        async with _deadline(timeout):
            result = await cast("Awaitable[Any]", reply)  # redis-py types both its clients at once
    if task.cancelling() > cancelled:  # Python 3.11's wait_for, used by redis-py, can swallow it
        raise asyncio.CancelledError
    return result


@asynccontextmanager
async def _deadline(seconds: float) -> AsyncIterator[None]:
    """Like `asyncio.timeout`, for a process that may be paused (by SIGSTOP, or with its virtual machine).

    After a pause the deadline has passed, but the reply may have arrived. The event loop runs timers before
    it reads, so a timer that fires late lets it read first, once."""
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    timer: asyncio.TimerHandle | None = None

    def expire() -> None:
        nonlocal timer
        now = loop.time()
        if now - due > _PAUSED_SECONDS:
            timer = loop.call_at(now + _PAUSED_SECONDS, lambda: scope.reschedule(loop.time()))
        else:
            scope.reschedule(now)

    timer = loop.call_at(due, expire)
    try:
        async with asyncio.timeout(None) as scope:
            yield
    finally:
        timer.cancel()


class _Pool(BlockingConnectionPool):
    """Replaces connections that were reset while they were idle.

    redis-py checks a connection for the end of its stream before handing it out. A reset is an error instead
    of an end, so the check passes and the command fails before it is sent."""

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        writer = connection._writer  # noqa: SLF001  # it has no public way to tell
        if writer is not None and writer.transport.is_closing():
            await connection.disconnect(nowait=True)
        await super().ensure_connection(connection)


def client(url: str, timeout: float, connections: int, *, tag: str) -> Redis:
    """A client without retries: after a broken connection there is no telling whether a script ran. `tag`:
    the hash tag of all keys."""
    options: dict[str, Any] = {
        "max_connections": connections,
        "timeout": timeout,
        "socket_timeout": None,  # `bounded` ends what takes too long
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": True,
        "protocol": 2,
    }
    seeds = Seeds.of(url)
    if seeds is None:
        options |= parse_url(url)
        if options.get("connection_class") is SSLConnection:
            options["connection_class"] = TlsConnection
        return Redis.from_pool(_Pool(**options))
    finder = seeds.finder(tag, timeout / 4)  # so that others can be asked, and the primary called, in time
    return Redis.from_pool(_Pool(finder=finder, **{**options, **seeds.options}))


UNFIT = ("MISCONF", "NOREPLICAS", "BUSY ", "UNBLOCKED ")
"""Prefixes of error replies that concern the server's state, not the command."""
_CONDITIONS = (redis_errors.OutOfMemoryError, redis_errors.NoPermissionError)
"""The same, for errors that have a class in redis-py, which drops the prefix."""


@contextmanager
def unavailable() -> Iterator[None]:
    """Turn every failure to reach the server into StoreUnavailableError."""
    try:
        yield
    except (TimeoutError, redis_errors.TimeoutError) as error:
        raise StoreUnavailableError("Redis timed out.") from error
    except redis_errors.BusyLoadingError as error:
        raise StoreUnavailableError("Redis is starting and still loading its data.") from error
    except redis_errors.ReadOnlyError as error:
        raise StoreUnavailableError("Redis is a read-only replica; configure the primary instead.") from error
    except (redis_errors.ConnectionError, redis_errors.ClusterError, OSError) as error:
        raise StoreUnavailableError(f"Redis cannot be reached: {error}") from error
    except RuntimeError as error:
        if "the handler is closed" not in str(error):  # uvloop's error for a connection that was just reset
            raise
        raise StoreUnavailableError("Redis cannot be reached: it closed the connection.") from error
    except redis_errors.ResponseError as error:
        if str(error).startswith(UNFIT) or isinstance(error, _CONDITIONS):
            raise StoreUnavailableError(f"Redis refused the command: {error}") from error
        raise


def without_password(url: str) -> str:
    """Without the query too, which may have one."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
