"""The fallback: the parent process answers 503 while no worker serves.

The kernel would keep accepting connections, so clients would wait for their own timeouts, and load balancers
would notice nothing. A single dead worker does not trigger it (the others serve), nor does a quick restart.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from gateway.config import SettingsError
from gateway.errors import FlorinError

log = logging.getLogger(__name__)

PATIENCE: Final = 5.0
"""Seconds without a worker after which the fallback starts. A worker starts faster than that."""
_HEAD_BYTES = 64 * 1024
_SECONDS = 5.0
"""Time limit for a client to send its headers and to read the response."""
_RETRY_AFTER = 5
_REFUSAL = FlorinError("no_worker", "No worker of the gateway is running; they are being restarted.").body()
_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"retry-after: %d\r\nconnection: close\r\n\r\n%s" % (len(_REFUSAL), _RETRY_AFTER, _REFUSAL)
)


class FallbackApp:
    """Answers every request on the listeners with 503, in a separate thread, while needed. Mutable: when a
    worker last served, and the thread."""

    def __init__(self, listeners: Sequence[socket.socket], tls: Callable[[], ssl.SSLContext | None]) -> None:
        """`tls` returns the listeners' TLS context. Called at each start, since certificates change."""
        self._listeners = listeners
        self._tls = tls
        self._served = time.monotonic()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Event | None = None

    def __repr__(self) -> str:
        return f"<FallbackApp {'answering' if self._thread else 'not needed'}>"

    def update(self, now: float, *, serving: bool) -> None:
        """Start or stop as needed. `serving`: some worker accepts requests."""
        if serving:
            self._served = now
            self.stop()
        elif self._thread is None and now - self._served > PATIENCE:
            self._start()

    def _start(self) -> None:
        log.error("No worker is serving; answering requests with 503 until one is")
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="florin-fallback", daemon=True
        )
        self._thread.start()
        started.wait()

    def stop(self) -> None:
        if self._thread is not None and self._loop is not None and self._done is not None:
            with suppress(RuntimeError):  # it failed to start: the log says why
                self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join()
            self._thread = None

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        started.set()
        answer = _refuse
        try:
            tls = self._tls()
        except SettingsError as error:  # an unusable certificate may be why no worker starts
            log.error("%s", error)
            tls, answer = None, _hang_up
        # Duplicates: closing a server closes its socket, but the workers' must stay open.
        servers = [
            await asyncio.start_server(answer, sock=listener.dup(), ssl=tls, limit=_HEAD_BYTES, backlog=2048)
            for listener in self._listeners
        ]
        await self._done.wait()
        for server in servers:
            server.close()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(_SECONDS):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(_ANSWER)
            await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(_HEAD_BYTES):  # otherwise the client would see a connection reset
                pass
    except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError):
        pass  # the client's doing: not worth a log line
    finally:
        writer.close()


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    writer.close()
