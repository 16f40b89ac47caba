"""A TCP server of a test's own making, of which nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(serve: Serve) -> AsyncIterator[int]:
    """Listens on the port that it gives. At the end, connections that are open, the latest included, are aborted
    and what serves them has ended."""
    serving: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            serving.discard(task)

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        server.close()
        await asyncio.sleep(0.01)  # what has just been accepted is then being served
        for task in serving:
            task.cancel()
        while serving:
            await asyncio.sleep(0.01)
