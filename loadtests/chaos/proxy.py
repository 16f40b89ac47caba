"""A TCP proxy that can be cut, silenced and slowed down, simulating the network between two processes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

_CHUNK = 65536
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER value that makes closing a socket reset the connection."""


class Proxy:
    """Mutable: how it treats connections, and the open connections. Uses one event loop."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.port = 0
        self.delay = 0.0
        """Seconds by which data is delayed, both ways."""
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def __repr__(self) -> str:
        state = "cut" if self._server is None else "open" if self._open.is_set() else "silent"
        return f"<Proxy :{self.port} → :{self.upstream[1]} {state}, {len(self._writers) // 2} connections>"

    async def start(self) -> None:
        """Start listening; after `cut`, on the same port."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Reset connections and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop()

    def drop(self) -> None:
        """Reset connections but accept new ones."""
        for writer in tuple(self._writers):
            _reset(writer)
        self._writers.clear()

    def silence(self) -> None:
        """Hold back all data silently; new connections are still accepted."""
        self._open.clear()

    def speak(self) -> None:
        """Deliver the data held back."""
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, to_there = await asyncio.open_connection(*self.upstream)
        except OSError:
            _reset(writer)
            return
        if self._server is None:  # cut meanwhile
            _reset(writer)
            _reset(to_there)
            return
        pair = {writer, to_there}
        self._writers |= pair
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, to_there))
                group.create_task(self._pump(there, writer))
        except* OSError:
            for half in pair:
                _reset(half)
        finally:
            self._writers -= pair
            for half in pair:
                half.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            if self.delay:
                await asyncio.sleep(self.delay)
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        await self._open.wait()
        with contextlib.suppress(OSError, RuntimeError):  # reset meanwhile
            writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):  # None once it is closed
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
