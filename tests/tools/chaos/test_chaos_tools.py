"""What the chaos run strikes with does what it says: the proxy, the clock that steps and the slow disk."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadtests.chaos import shim
from loadtests.chaos.proxy import Proxy
from loadtests.chaos.shim import Shim
from tests.support.missing import absent
from tests.support.waiting import PATIENCE_S


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """In front of a server that says back what it hears."""
    writers = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    made = Proxy(server.sockets[0].getsockname())
    await made.start()
    yield made
    await made.cut()
    server.close()
    for writer in writers:
        writer.close()
    await asyncio.sleep(0.01)


class Line:
    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._proxy.port)
        return self

    async def __aexit__(self, *_):
        self.writer.transport.abort()
        await asyncio.sleep(0)

    async def ask(self, seconds: float = PATIENCE_S) -> bytes:
        self.writer.write(b"hello\n")
        async with asyncio.timeout(seconds):
            return await self.reader.readline()


async def test_a_proxy_passes_on_what_it_gets(proxy: Proxy):
    async with Line(proxy) as line:
        assert await line.ask() == b"hello\n"
        line.writer.write_eof()
        assert await line.reader.read() == b""


async def test_a_cut(proxy: Proxy):
    async with Line(proxy) as line:
        await line.ask()
        await proxy.cut()
        with pytest.raises(ConnectionError):
            assert await line.reader.read() != b""
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    port = proxy.port
    await proxy.start()
    assert proxy.port == port
    async with Line(proxy) as line:
        assert await line.ask() == b"hello\n"


async def test_silence_and_what_arrives_after_it(proxy: Proxy):
    async with Line(proxy) as line:
        await line.ask()
        proxy.silence()
        with pytest.raises(TimeoutError):
            await line.ask(0.1)
        proxy.speak()
        assert await line.reader.readline() == b"hello\n"


async def test_a_delay_is_both_ways(proxy: Proxy):
    async with Line(proxy) as line:
        await line.ask()
        proxy.delay = 0.1
        began = time.monotonic()
        await line.ask()
        assert time.monotonic() - began >= 0.2


SCRIPT = """
import datetime, os, sys, time
def sync():
    began = time.monotonic()
    with open(sys.argv[1], "w") as file:
        os.fsync(file.fileno())
    return time.monotonic() - began
sys.stdin.readline()
print(time.time(), datetime.datetime.now().timestamp(), sync(), flush=True)
"""


def test_a_clock_that_steps_and_a_slow_disk(tmp_path: Path):
    library = shim.build(tmp_path)
    if library is None:
        absent("no C compiler is installed: apt-get install gcc")
    told = Shim(library, tmp_path / "control")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "file")]
    with subprocess.Popen(
        command, env=os.environ | told.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        told.say(clock_s=-3600, sync_s=0.2)  # while it runs
        out, _ = process.communicate("\n", timeout=60)
    told.close()
    clock, date, took = map(float, out.split())
    assert time.time() - 3700 < clock <= date < time.time() - 3500
    assert took >= 0.2
