"""Accepts connections from a listener, several per event loop iteration if the loop is busy.

uvloop's server accepts one connection per iteration (as libuv does since 1.45). An iteration of a busy worker
takes tens of milliseconds, so new clients and health checks would wait for seconds before the worker even
sees them, and it cannot refuse what it does not see. Accepting all pending connections is no better: of
several workers that share the listener, the first to wake up would take them all.

So each iteration accepts one connection, plus one for each millisecond of processor time since the last.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

SECONDS_EACH: Final = 0.001
"""Processor time for which one more connection is accepted."""
MOST: Final = 256
"""Maximum per iteration."""
_PAUSE: Final = 1.0
"""Seconds until the next attempt after file descriptors or memory ran out."""
_HANDSHAKE_SECONDS: Final = 10.0
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Acceptor:
    """Mutable: whether it accepts, and connections being set up. It never closes the listener, which other
    workers may share."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None = None,
        backlog: int = 2048,
    ) -> None:
        """`listener` must be bound and non-blocking. Create the acceptor within the event loop."""
        self._listener = listener
        self._protocol = protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._worked = time.thread_time()
        self._pause: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        listener.listen(backlog)
        self._watch()

    def __repr__(self) -> str:
        return f"<Acceptor {'open' if self._open else 'closed'}, setting up {len(self._tasks)}>"

    def close(self) -> None:
        """Stop accepting. Idempotent."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._listener.fileno())
            if self._pause is not None:
                self._pause.cancel()

    async def wait_closed(self) -> None:
        """Wait for connections that are being set up."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _watch(self) -> None:
        if self._open:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        now = time.thread_time()
        due = min(1 + int((now - self._worked) / SECONDS_EACH), MOST)
        for _ in range(due):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):  # none left, or another worker was quicker
                break
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    log.error("Cannot accept connections: %s; retrying in %g s", error.strerror, _PAUSE)
                    self._loop.remove_reader(self._listener.fileno())
                    self._pause = self._loop.call_later(_PAUSE, self._watch)
                    break
                continue  # the client is already gone
            connection.setblocking(False)
            task = self._loop.create_task(self._connect(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._worked = time.thread_time()

    async def _connect(self, connection: socket.socket) -> None:
        seconds = _HANDSHAKE_SECONDS if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:  # including TLS errors and timeouts, which the client causes
            log.debug("Connection failed during set-up: %r", error)
            connection.close()
