"""Connections to engines, on real sockets, against a server that plays scripts."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.transport import engine_connection, engine_pool
from gateway.transport.engine_connection import (
    EngineConnection,
    EngineConnectionError,
    ResponseTooLargeError,
)
from gateway.transport.engine_pool import Address, EnginePool, address
from tests.support.certificates import Authority
from tests.support.waiting import PATIENCE_S, until

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
FIXED = OK + b"content-length: 5\r\n\r\nhello"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nx: y\r\n\r\n"
ENDLESS = OK + b"transfer-encoding: chunked\r\n\r\n"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(head.rpartition(b"content-length: ")[2].split(b"\r\n")[0]))


@dataclass
class Server:
    """Plays one script for each connection; the last one again and again."""

    scripts: list[Script]
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    running: dict[asyncio.Task[Any] | None, asyncio.StreamWriter] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.running[asyncio.current_task()] = writer
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await script(reader, writer)
        writer.close()

    async def stop(self) -> None:
        for task, writer in self.running.items():
            writer.transport.abort()
            if task is not None:
                task.cancel()
        await asyncio.gather(*filter(None, self.running), return_exceptions=True)
        await asyncio.sleep(0)

    def answering(self, *parts: bytes, close: bool = False) -> Script:
        """Answer each request with these parts, each in a packet of its own."""

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                self.bodies.append(await read_request(reader))
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.001 if len(parts) > 1 else 0)
                if close:
                    return

        return script


@contextlib.asynccontextmanager
async def playing(server: Server, **options: Any) -> AsyncIterator[Address]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, **options)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield address(f"{'https' if options.get('ssl') else 'http'}://127.0.0.1:{port}")
    finally:
        listener.close()
        await server.stop()


@pytest.fixture
async def pool():
    made = EnginePool()
    yield made
    made.close()
    await asyncio.sleep(0)


@pytest.fixture
def server() -> Server:
    return Server([])


async def acquire(pool: EnginePool, where: Address) -> EngineConnection:
    return pool.idle(where) or await pool.connect(where, timeout=PATIENCE_S)


async def ask(pool: EnginePool, where: Address, body: bytes = b"{}", limit: int = 1000) -> tuple[int, bytes]:
    async with asyncio.timeout(PATIENCE_S):
        connection = await acquire(pool, where)
        try:
            status = await connection.send(HEAD % len(body), body)
            body = connection.arrived(limit)
            return status, await connection.read(limit) if body is None else body
        finally:
            pool.release(where, connection)


@pytest.mark.parametrize(
    ("response", "connections"),
    [
        (FIXED, 1),
        (CHUNKED, 1),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + FIXED, 1),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\ncontent-length: 3\r\n\r\n" + FIXED, 1),
        (OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", 3),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", 3),
        (FIXED + b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled", 3),
        (FIXED + b"rubbish", 3),
    ],
    ids=["fixed", "chunked", "100", "103", "close", "HTTP/1.0", "a second response", "bytes after it"],
)
async def test_a_connection_is_used_again_only_if_that_is_safe(
    pool: EnginePool, server: Server, response: bytes, connections: int
):
    server.scripts = [server.answering(response)]
    async with playing(server) as where:
        for i in range(3):
            assert await ask(pool, where, b"x" * i) == (200, b"hello")
            await asyncio.sleep(0.01)
        pool.close()
    assert server.bodies == [b"", b"x", b"xx"]
    assert server.connections == connections
    assert pool.in_use == 0


@pytest.mark.parametrize("status", [204, 304])
async def test_responses_without_a_body(pool: EnginePool, server: Server, status: int):
    server.scripts = [server.answering(b"HTTP/1.1 %d x\r\n\r\n" % status)]
    async with playing(server) as where:
        assert [await ask(pool, where) for _ in range(2)] == [(status, b"")] * 2
    assert server.connections == 1


async def test_a_body_that_ends_with_its_connection(pool: EnginePool, server: Server):
    server.scripts = [server.answering(OK + b"\r\n", b"hel", b"lo", close=True)]
    async with playing(server) as where:
        assert [await ask(pool, where) for _ in range(2)] == [(200, b"hello")] * 2
    assert server.connections == 2


@pytest.mark.parametrize("response", [FIXED, CHUNKED], ids=["fixed", "chunked"])
async def test_a_connection_lost_at_any_byte_is_an_error(pool: EnginePool, server: Server, response: bytes):
    cuts = range(len(response))
    server.scripts = [server.answering(response[:cut], close=True) for cut in cuts]
    async with playing(server) as where:
        for cut in cuts:
            with pytest.raises(EngineConnectionError):
                await ask(pool, where)
            assert pool.in_use == 0, cut
        assert not pool._idle


@pytest.mark.parametrize("response", [FIXED, CHUNKED], ids=["fixed", "chunked"])
async def test_a_response_byte_by_byte(pool: EnginePool, server: Server, response: bytes):
    server.scripts = [server.answering(*(bytes([byte]) for byte in response))]
    async with playing(server) as where:
        assert [await ask(pool, where) for _ in range(2)] == [(200, b"hello")] * 2
    assert server.connections == 1


@pytest.mark.parametrize(
    "response",
    [
        b"rubbish\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nx",
        OK + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        OK + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"content-length: -1\r\n\r\n",
        OK + b"content-length: 99999999999999999999\r\n\r\n",
        ENDLESS + b"fffffffffffffffff\r\n",
        ENDLESS + b"-1\r\n",
        OK + b"x: a\r\n b\r\n\r\n",
        OK + b"x : a\r\n\r\n",
        b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
    ],
)
async def test_what_is_not_http_is_an_error(pool: EnginePool, server: Server, response: bytes):
    server.scripts = [server.answering(response)]
    async with playing(server) as where:
        with pytest.raises(EngineConnectionError):
            await ask(pool, where)
    assert pool.in_use == 0


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (OK, b"x: " + b"y" * 1000 + b"\r\n"),
        (OK + b"x: ", b"y" * 1000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (ENDLESS + b"1;", b"x" * 1000),
        (ENDLESS + b"0\r\n", b"x: y\r\n" * 100),
        (b"HTTP/1.1 200 ", b"OK" * 500),
    ],
    ids=["headers", "one header", "100 Continue", "a chunk extension", "trailers", "a reason"],
)
async def test_what_never_ends_is_given_up(pool: EnginePool, server: Server, begin: bytes, again: bytes):
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(begin)
        while True:
            writer.write(again)
            sent += len(again)
            await writer.drain()
            await asyncio.sleep(0)

    server.scripts = [script]
    async with playing(server) as where:
        with pytest.raises(EngineConnectionError):
            await ask(pool, where)
        await asyncio.sleep(0.05)
    assert sent < 8_000_000  # with the kernel's buffers


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("chunk", [b"2\r\nab\r\n" * 20_000, b"10000\r\n" + b"x" * 65536 + b"\r\n"])
async def test_an_answer_above_the_limit_is_given_up_and_takes_no_more_memory(
    pool: EnginePool, server: Server, chunk: bytes
):
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(ENDLESS)
        while True:
            writer.write(chunk)
            await writer.drain()

    server.scripts = [script]
    limit = 1_000_000
    async with playing(server) as where:
        tracemalloc.start()
        try:
            with pytest.raises(ResponseTooLargeError, match="longer than 1,000,000 bytes"):
                await ask(pool, where, limit=limit)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 25 * limit  # the server's part included; half a million objects of two bytes take more


async def test_limits_of_an_answer_are_exact(pool: EnginePool, server: Server):
    server.scripts = [server.answering(FIXED), server.answering(OK + b"content-length: 5\r\n\r\nhe", b"llo")]
    async with playing(server) as where:
        assert await ask(pool, where, limit=5) == (200, b"hello")
        with pytest.raises(ResponseTooLargeError):
            await ask(pool, where, limit=4)
        assert await ask(pool, where, limit=5) == (200, b"hello")


async def test_nothing_is_read_ahead_of_a_slow_reader(pool: EnginePool, server: Server):
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(ENDLESS)
        while True:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            sent += 65536
            await writer.drain()

    server.scripts = [script]
    async with playing(server) as where:
        connection = await acquire(pool, where)
        await connection.send(HEAD % 0, b"")
        for _ in range(3):
            await until(lambda: connection._paused)
            await asyncio.sleep(0.05)
            held = connection._buffered
            assert held <= 4 * engine_connection.READ_AHEAD_BYTES
            assert len(await connection.readany()) == held
        assert sent < 30_000_000  # most of it in the kernel's buffers
        pool.release(where, connection)
        assert connection.closed


class Consumer:
    """Notes the parts that are delivered to it, and stops, or fails, at some of them."""

    def __init__(self, *, stop_at: bytes = b"", fail_at: bytes = b"") -> None:
        self.parts: list[bytes] = []
        self.stop_at = stop_at
        self.fail_at = fail_at

    def __call__(self, part: bytes) -> bool:
        self.parts.append(part)
        if part == self.fail_at:
            raise ValueError(part)
        return part != self.stop_at


@contextlib.asynccontextmanager
async def streaming(pool: EnginePool, server: Server) -> AsyncIterator[EngineConnection]:
    """A connection whose response has begun."""
    server.scripts = [server.answering(ENDLESS)]
    async with playing(server) as where, asyncio.timeout(PATIENCE_S):
        connection = await acquire(pool, where)
        await connection.send(HEAD % 0, b"")
        yield connection
        pool.release(where, connection)


async def delivering(connection: EngineConnection, consumer: Consumer, *reads: bytes) -> asyncio.Task[bool]:
    """A task that delivers to `consumer`; meanwhile these arrive, before the task runs again."""
    task = asyncio.create_task(connection.deliver(consumer))
    await asyncio.sleep(0)
    for data in reads:
        connection.data_received(data)
    return task


async def test_what_is_read_at_once_is_delivered_at_once(pool: EnginePool, server: Server):
    consumer = Consumer()
    reads = [b"2\r\nab\r\n1\r\nc\r\n", b"3\r\nd", b"ef\r\n", b"1\r\ng\r\n0\r\n\r\n"]
    async with streaming(pool, server) as connection:
        task = await delivering(connection, consumer, *reads)
        assert consumer.parts == [b"abc", b"d", b"ef", b"g"]  # without the task
        assert not await task
        assert connection.reusable


async def test_a_consumer_may_stop_and_go_on(pool: EnginePool, server: Server):
    """What arrives before its task runs waits."""
    consumer = Consumer(stop_at=b"b")
    async with streaming(pool, server) as connection:
        task = await delivering(connection, consumer, *(b"1\r\n%c\r\n" % c for c in b"abcd"), b"0\r\n\r\n")
        assert await task
        assert consumer.parts == [b"a", b"b"]
        assert not await connection.deliver(consumer)
        assert consumer.parts == [b"a", b"b", b"cd"]
        assert connection.reusable


async def test_a_consumers_error_reaches_the_task(pool: EnginePool, server: Server):
    consumer = Consumer(fail_at=b"b")
    async with streaming(pool, server) as connection:
        task = await delivering(connection, consumer, *(b"1\r\n%c\r\n" % c for c in b"abc"))
        with pytest.raises(ValueError, match="b"):
            await task
        assert consumer.parts == [b"a", b"b"]


async def test_nothing_is_delivered_to_a_task_that_was_cancelled(pool: EnginePool, server: Server):
    consumer = Consumer()
    async with streaming(pool, server) as connection:
        task = await delivering(connection, consumer, b"1\r\na\r\n")
        task.cancel()
        connection.data_received(b"1\r\nb\r\n")  # before the task runs
        with pytest.raises(asyncio.CancelledError):
            await task
        connection.data_received(b"1\r\nc\r\n")
        assert (consumer.parts, await connection.readany()) == ([b"a"], b"bc")


async def test_what_precedes_the_loss_of_a_connection_is_delivered(pool: EnginePool, server: Server):
    consumer = Consumer(stop_at=b"a")
    async with streaming(pool, server) as connection:
        task = await delivering(connection, consumer, b"1\r\na\r\n", b"1\r\nb\r\n")
        connection.eof_received()
        assert await task
        with pytest.raises(EngineConnectionError):
            await connection.deliver(consumer)
        assert consumer.parts == [b"a", b"b"]


@pytest.mark.parametrize("size", [10, 10_000_000])
async def test_an_engine_may_answer_before_it_has_read_the_request(
    pool: EnginePool, server: Server, size: int
):
    """And need not read the rest."""
    ended = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 x\r\ncontent-length: 2\r\n\r\nno")
        await ended.wait()

    server.scripts = [script]
    async with playing(server) as where:
        assert await ask(pool, where, b"x" * size) == (413, b"no")
        assert bool(pool._idle) is (size == 10)
        ended.set()


async def test_data_on_an_idle_connection_closes_it(pool: EnginePool, server: Server):
    idle = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(FIXED)
        await idle.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad")
        await reader.read()

    server.scripts = [script]
    async with playing(server) as where:
        assert await ask(pool, where) == (200, b"hello")
        [[connection]] = pool._idle.values()
        idle.set()
        await until(lambda: connection.closed)
        assert await ask(pool, where) == (200, b"hello")
    assert server.connections == 2


async def test_a_response_that_is_not_read_whole_closes_the_connection(pool: EnginePool, server: Server):
    server.scripts = [server.answering(FIXED)]
    async with playing(server) as where:
        connection = await acquire(pool, where)
        await connection.send(HEAD % 0, b"")
        await until(lambda: connection.complete)
        assert not connection.reusable
        pool.release(where, connection)
        assert connection.closed
        assert not pool._idle


@pytest.mark.parametrize("reading", [False, True])
async def test_a_cancelled_exchange_closes_its_connection(pool: EnginePool, server: Server, reading: bool):
    left = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        if reading:
            writer.write(OK + b"content-length: 5\r\n\r\nhe")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        left.set()

    server.scripts = [script]
    async with playing(server) as where:
        asking = asyncio.ensure_future(ask(pool, where))
        await until(lambda: server.connections)
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(left.wait(), PATIENCE_S)  # the engine notices
    assert pool.in_use == 0


async def test_idle_connections_expire(server: Server, monkeypatch):
    monkeypatch.setattr(engine_pool, "IDLE_SECONDS", 0.1)
    now = 0.0
    pool = EnginePool(clock=lambda: now)
    server.scripts = [server.answering(FIXED)]
    async with playing(server) as where:
        await ask(pool, where)
        now = 0.09
        await ask(pool, where)
        assert server.connections == 1
        [[connection]] = pool._idle.values()
        now = 0.2
        await until(lambda: not pool._idle)
        assert connection.closed
        assert pool._sweeping is None
        await ask(pool, where)
        assert server.connections == 2
        now = 0.4
        await ask(pool, where)  # too old, though not swept yet
        assert server.connections == 3
    pool.close()
    assert not pool._idle


async def test_tls(server: Server, tmp_path: Path):
    ca = Authority.at(tmp_path)
    files = ca.issue("engine")
    serve = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serve.load_cert_chain(files.cert, files.key)
    trusting = EnginePool(ssl.create_default_context(cafile=str(ca.file)))
    server.scripts = [server.answering(CHUNKED)]
    async with playing(server, ssl=serve) as where:
        for _ in range(2):
            assert await ask(trusting, where, b"x" * 300_000) == (200, b"hello")
        assert server.connections == 1
        with pytest.raises(ssl.SSLError):
            await ask(EnginePool(), where)
        trusting.close()
        await until(lambda: all(task.done() for task in server.running if task))  # the engine notices


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://10.0.0.7:8000", Address("10.0.0.7", 8000, False, b"", b"10.0.0.7:8000")),
        ("http://engine", Address("engine", 80, False, b"", b"engine")),
        ("https://engine/a/b/", Address("engine", 443, True, b"/a/b", b"engine")),
        ("http://[::1]:8000", Address("::1", 8000, False, b"", b"[::1]:8000")),
        ("http://bücher.example", Address("xn--bcher-kva.example", 80, False, b"", b"xn--bcher-kva.example")),
    ],
)
def test_addresses(url: str, expected: Address):
    assert astuple(address(url)) == astuple(expected)
