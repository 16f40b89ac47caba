"""Accepts connections from a listener that several workers may share.

Several per event loop iteration if the loop is busy: uvloop's server accepts one connection per iteration (as
libuv does since 1.45). An iteration of a busy worker takes tens of milliseconds, so new clients and health
checks would wait for seconds before the worker even sees them, and it cannot refuse what it does not see. So
each iteration accepts one connection, plus one for each millisecond of processor time since the last.

Evenly among the workers: the kernel wakes up all of them, and the first would accept most of a burst. So a
worker that has more connections than another leaves the next ones to it for a moment.

Measured against SO_REUSEPORT (docs/performance.md): that spreads connections less evenly, and those that the
kernel has assigned to a stopped or dead worker wait for it.
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

from gateway.observability.shared_values import SharedValues
from gateway.transport.connection_limits import Connections

log = logging.getLogger(__name__)

SECONDS_EACH: Final = 0.001
"""Processor time for which one more connection is accepted."""
MOST: Final = 256
"""Maximum per iteration."""
_BACKLOG: Final = 2048
"""Connections that the kernel may hold until they are accepted."""
_PAUSE: Final = 1.0
"""Seconds until the next attempt after file descriptors or memory ran out."""
SEND_BUFFER: Final = 128 * 1024
"""Bytes; the kernel allows twice as many, its own bookkeeping included. With 100 ms to the client and back, a
stream still has more than a megabyte per second."""
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_WAY_SECONDS: Final = 0.004
"""How long a worker with more connections gives way. On a busy processor, others need that to wake up."""


class Peers:
    """The workers that share the listener, and their numbers of connections."""

    def __init__(self, values: SharedValues, slot: int) -> None:
        """`slot`: this worker's."""
        self._values = values
        self._slot = slot
        self._mine = 0

    def publish(self, connections: int | None) -> None:
        """This worker's connections; None if it accepts no more."""
        self._mine = connections or 0
        self._values.accepts(self._slot, connections)

    def ahead(self) -> bool:
        """Whether this worker has too many connections, compared with another."""
        fewest = self._values.fewest_connections()
        return fewest is not None and is_ahead(self._mine, fewest)


def is_ahead(mine: int, fewest: int) -> bool:
    """A few more are not worth the wait."""
    return mine > fewest + 1 + fewest // 16


def bound_unread(listener: socket.socket, write_timeout: float) -> None:
    """Bound what the kernel keeps for each client that does not read; accepted connections inherit it. By
    itself, it takes megabytes for each, and the gateway does not see that nobody reads them."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    if listener.family in {socket.AF_INET, socket.AF_INET6}:
        unacknowledged = round(write_timeout * 1000)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unacknowledged)


class Acceptor:
    """Mutable: whether it accepts, and connections being set up. It never closes the listener."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        connections: Connections,
        *,
        tls: ssl.SSLContext | None = None,
        peers: Peers | None = None,
    ) -> None:
        """`listener` must be bound and non-blocking. Create the acceptor within the event loop. `peers`: if
        other workers share the listener."""
        self._listener = listener
        self._protocol = protocol
        self._connections = connections
        self._tls = tls
        self._peers = peers
        bound_unread(listener, connections.limits.write_timeout)
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._worked = time.thread_time()
        self._pause: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        if peers is not None:
            connections.on_change = peers.publish
            peers.publish(0)
        listener.listen(_BACKLOG)
        self._watch()

    def __repr__(self) -> str:
        return f"<Acceptor {'open' if self._open else 'closed'}, setting up {len(self._tasks)}>"

    def close(self) -> None:
        """Accept what is waiting, which closing the listener would reset, and nothing more. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._listener.fileno())
        if self._pause is not None:
            self._pause.cancel()
        if self._peers is not None:
            self._connections.on_change = lambda _: None
            self._peers.publish(None)
        self._take(_BACKLOG)

    async def wait_closed(self) -> None:
        """Wait for connections that are being set up."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _watch(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _unwatch(self, seconds: float, resume: Callable[[], None]) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(seconds, resume)

    def _accept(self) -> None:
        if self._peers is not None and self._peers.ahead():
            self._unwatch(_WAY_SECONDS, self._accept_anyway)
        else:
            self._take(self._due())

    def _accept_anyway(self) -> None:
        """The other worker may be stopped."""
        self._watch()
        self._take(1 + self._due())

    def _due(self) -> int:
        return min(1 + int((time.thread_time() - self._worked) / SECONDS_EACH), MOST)

    def _take(self, most: int) -> None:
        for _ in range(most):
            if not self._accept_one():
                break
        self._worked = time.thread_time()

    def _accept_one(self) -> bool:
        """False if none is left."""
        try:
            connection, peer = self._listener.accept()
        except (BlockingIOError, InterruptedError):  # none left, or another worker was quicker
            return False
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                return True  # the client is already gone
            if self._open:
                log.error("Cannot accept connections: %s; retrying in %g s", error.strerror, _PAUSE)
                self._unwatch(_PAUSE, self._watch)
            return False
        address = peer[0] if isinstance(peer, tuple) else ""  # "" for Unix sockets
        # Without TLS, the connection itself is refused, with an answer.
        if not self._connections.set_up(address, capped=self._tls is not None):
            connection.close()
            return True
        connection.setblocking(False)
        task = self._loop.create_task(self._connect(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _connect(self, connection: socket.socket, address: str) -> None:
        seconds = self._connections.limits.header_timeout if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:  # including TLS errors and timeouts, which the client causes
            log.debug("Connection failed during set-up: %r", error)
            connection.close()
        finally:
            self._connections.is_set_up(address)
