"""What the answers of a Redis that gives none mean."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import time
from typing import Self
from urllib.parse import urlsplit

import pytest
import uvloop

from adapters.errors import StoreUnavailableError
from adapters.store.redis.connection import bounded, client, unavailable
from tests.support.waiting import PATIENCE_S


def test_a_connection_that_the_event_loop_has_closed():
    """uvloop's own error, which is no OSError: it comes when Redis resets a connection just before a command is
    written to it."""

    async def write_to_what_is_closed() -> None:
        server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.transport.abort()
        await asyncio.sleep(0.05)  # it is closed in a later turn of the loop
        try:
            with unavailable():
                writer.writelines([b"PING\r\n"])
        finally:
            server.close()

    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        uvloop.run(write_to_what_is_closed())


def test_other_defects_are_not_taken_for_it():
    with pytest.raises(RuntimeError, match="a defect"), unavailable():
        raise RuntimeError("a defect")


async def turns() -> None:
    """Of the event loop, in each of which it looks at its sockets. After a pause, a single sleep would be over at once."""
    for _ in range(10):
        await asyncio.sleep(0.005)


async def _ping(url: str, proxy: ResettingProxy) -> None:
    redis = client(url, PATIENCE_S, 4, tag="{t}")
    try:
        for _ in range(3):
            assert await bounded(redis.ping(), PATIENCE_S)
            proxy.reset()
            await turns()  # the loop hears of it
    finally:
        await redis.aclose()


class ResettingProxy:
    """In front of a server, and able to reset its clients' connections as a failing host does."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._made: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc) -> None:
        self._server.close()
        self.reset()

    def reset(self) -> None:
        for writer in self._made:
            sock = writer.get_extra_info("socket")
            if sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._made.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._path)
        self._made.append(writer)

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    sink.write(data)
            sink.close()

        await asyncio.gather(pass_on(reader, back), pass_on(there, writer))


def test_a_connection_that_was_reset_is_made_anew_before_it_is_used(valkey_url):
    async def run() -> None:
        async with ResettingProxy(urlsplit(valkey_url).path) as proxy:
            await _ping(f"redis://127.0.0.1:{proxy.port}", proxy)

    uvloop.run(run())


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_a_reply_that_came_while_the_process_stood_still_counts(valkey_url, run):
    async def paused() -> None:
        redis = client(valkey_url, PATIENCE_S, 1, tag="{t}")
        try:
            await bounded(redis.ping(), PATIENCE_S)
            asked = asyncio.create_task(bounded(redis.blpop("nothing", 0.3), 0.5))
            await turns()
            time.sleep(1)  # noqa: ASYNC251  # as after SIGSTOP
            [connection] = redis.connection_pool._in_use_connections
            reply = connection._writer.get_extra_info("socket").fileno()
            assert select.select([reply], [], [], PATIENCE_S)[0], "Redis, too, may be slow"
            assert await asked is None
        finally:
            await redis.aclose()

    run(paused())


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_a_reply_that_does_not_come_is_given_up(valkey_url, run):
    async def waiting() -> None:
        redis = client(valkey_url, PATIENCE_S, 1, tag="{t}")
        try:
            with pytest.raises(StoreUnavailableError, match="Redis timed out"):
                await bounded(redis.blpop("nothing", 0), 0.2)
            assert await bounded(redis.ping(), PATIENCE_S)  # on another connection
        finally:
            await redis.aclose()

    run(waiting())


def test_an_event_loop_that_is_always_late_still_gives_up():
    async def late() -> None:
        while True:
            time.sleep(0.3)  # noqa: ASYNC251  # more than what shows that the process was not running
            await asyncio.sleep(0)

    async def run() -> None:
        blocking = asyncio.create_task(late())
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(StoreUnavailableError, match="timed out"):
                await bounded(asyncio.get_running_loop().create_future(), 0.1)
        blocking.cancel()

    asyncio.run(run())
