"""Takes connections from a listener, as many at a time as the event loop's pace asks for.

uvloop's own server takes one connection in each round of the event loop (libuv does, since 1.45). A round of
a busy worker lasts tens of milliseconds, so there new clients, and whoever asks for the worker's health, wait
for seconds before the worker even knows of them, and it cannot refuse what it does not see. Taking all that
wait is no better: of several workers that share the listener, the first to wake would have them all.

So one is taken in each round, and one more for each millisecond that the rounds since the last have cost.
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
"""Of processor time, for which one more connection is taken."""
MOST: Final = 256
"""In one round."""
_PAUSE: Final = 1.0
"""Seconds until the next try, when files or memory have run out."""
_HANDSHAKE_SECONDS: Final = 10.0
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Acceptor:
    """Mutable: whether it listens, and the connections that are being set up. It does not close the listener,
    which other workers may have as well."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None = None,
        backlog: int = 2048,
    ) -> None:
        """`listener` is bound and does not block. Call it within the event loop."""
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
        """Take no more. May be called twice."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._listener.fileno())
            if self._pause is not None:
                self._pause.cancel()

    async def wait_closed(self) -> None:
        """Until none is being set up."""
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
            except (BlockingIOError, InterruptedError):  # there are no more, or another worker was quicker
                break
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    log.error("Cannot accept connections for a second: %s", error.strerror)
                    self._loop.remove_reader(self._listener.fileno())
                    self._pause = self._loop.call_later(_PAUSE, self._watch)
                    break
                continue  # this client has gone already
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
        except OSError as error:  # TLS errors and timeouts, too: the client's doing
            log.debug("A connection was not set up: %r", error)
            connection.close()
