"""TLS before servers that have none, as stunnel does it: the servers' binaries in these tests are built without.

A relay takes connections with TLS and without, on the same port: a server's own peers, which find it at the
address that it announces, speak none. It counts both.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from tests.support.certificates import Files
from tests.support.waiting import PATIENCE_S

_HELLO = b"\x16"
"""Of a TLS handshake."""
_SSL_REQUEST = bytes.fromhex("0000000804d2162f")
"""What PostgreSQL's clients ask before it."""


class TlsRelays:
    """Relays in a thread. Mutable: the certificate, and who is connected."""

    def __init__(self, files: Files) -> None:
        self.encrypted = self.plain = 0
        """Connections so far."""
        self.present(files)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []

    def present(self, files: Files, *, clients: ssl.SSLContext | None = None) -> None:
        """The certificate of connections from now on."""
        self._context = clients or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.cert, files.key)

    def open(self, target: int, *, port: int = 0) -> int:
        """A port that leads to `target`, both on 127.0.0.1."""
        listening = socket.create_server(("127.0.0.1", port))
        listening.setblocking(False)
        self._sockets.append(listening)
        self._loop.call_soon_threadsafe(self._loop.add_reader, listening, self._accept, listening, target)
        return int(listening.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for listening in self._sockets:
            listening.close()

    async def _end(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _ in range(3):  # in which transports that were aborted close their sockets
            await asyncio.sleep(0)

    def _accept(self, listening: socket.socket, target: int) -> None:
        with suppress(BlockingIOError, ConnectionError):  # the client is gone
            accepted, _ = listening.accept()
            accepted.setblocking(False)
            task = self._loop.create_task(self._relay(accepted, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: accepted.close())  # also if it is cancelled before it begins

    async def _relay(self, accepted: socket.socket, target: int) -> None:
        with suppress(OSError, EOFError, asyncio.IncompleteReadError):
            encrypted = await self._wants_tls(accepted)
            self.encrypted, self.plain = self.encrypted + encrypted, self.plain + (not encrypted)
            reader, writer = await self._streams(accepted, encrypted=encrypted)
            with _aborting(writer):
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target)
                with _aborting(inner_writer):
                    await _until_one_ends(_pump(reader, inner_writer), _pump(inner_reader, writer))

    async def _wants_tls(self, accepted: socket.socket) -> bool:
        readable = self._loop.create_future()
        self._loop.add_reader(accepted, lambda: readable.done() or readable.set_result(None))
        try:
            await readable
        finally:
            self._loop.remove_reader(accepted)
        first = accepted.recv(len(_SSL_REQUEST), socket.MSG_PEEK)
        if first == _SSL_REQUEST:
            accepted.recv(len(_SSL_REQUEST))
            accepted.send(b"S")
        return first == _SSL_REQUEST or first.startswith(_HELLO)

    async def _streams(
        self, accepted: socket.socket, *, encrypted: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        context = self._context if encrypted else None
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, accepted, ssl=context)
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)


@contextmanager
def _aborting(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:  # also when the relays end, which cancels it
        writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def _until_one_ends(*pumps: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(pump) for pump in pumps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
