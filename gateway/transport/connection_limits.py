"""How long a client may take, and how many connections there may be.

One sweep a second looks at all connections. A timer per connection would have to be set again for every
request and every chunk.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from gateway.config import Settings
from gateway.config.trusted_proxies import TrustedProxies
from gateway.transport.unfinished_heads import UnfinishedHeads

SWEEP_SECONDS: Final = 1.0
CLOSE_REASONS: Final = (
    "header_timeout", "body_timeout", "write_timeout", "idle", "too_many", "too_many_from_address",
    "invalid_http", "headers_too_large", "heads", "pipelining",
)  # fmt: skip
"""Why a connection is closed because of a limit."""


class Phase(Enum):
    """What a connection waits for."""

    HEAD = "header_timeout"
    """The headers of a request, or a first request. The value is the reason for closing it."""
    BODY = "body_timeout"
    """The body of a request."""
    READER = "write_timeout"
    """The client, which must read what was sent."""
    IDLE = "idle"
    """The next request."""
    SERVER = ""
    """Nothing: the gateway is working."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Sizes in bytes, times in seconds, rates in bytes per second."""

    connections: int
    connections_per_address: int
    header_bytes: int
    headers: int
    header_timeout: float
    rate: float
    """A client that sends or reads less than this over a whole `body_timeout` or `write_timeout` is
    disconnected."""
    body_timeout: float
    write_timeout: float
    keep_alive: float
    proxies: TrustedProxies | None = None
    """Their connections are those of many clients, so their addresses have no limit of their own."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a connection waited for at some time, and how much it had transferred."""

    phase: Phase
    request: int
    """Number of the request on its connection: each has its own time."""
    transferred: int
    """Bytes of the body received, or bytes that the client has read."""
    at: float


def overdue(mark: Mark, now: Mark, limits: ConnectionLimits) -> tuple[bool, Mark]:
    """Whether the client has taken too long from `mark` to `now`, and the mark to compare with next time."""
    if mark.phase is not now.phase or mark.request != now.request:
        return False, now
    elapsed = now.at - mark.at
    if now.phase is Phase.HEAD:
        return elapsed >= limits.header_timeout, mark
    if now.phase is Phase.IDLE:
        return elapsed >= limits.keep_alive, mark
    if now.phase is Phase.SERVER:
        return False, now
    window = limits.body_timeout if now.phase is Phase.BODY else limits.write_timeout
    if elapsed < window:
        return False, mark
    return now.transferred - mark.transferred < limits.rate * window, now


def connection_limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        connections=settings.max_connections,
        connections_per_address=settings.max_connections_per_address,
        header_bytes=settings.max_header_bytes,
        headers=settings.max_headers,
        header_timeout=settings.header_timeout,
        rate=settings.min_client_rate,
        body_timeout=settings.body_timeout,
        write_timeout=settings.write_timeout,
        keep_alive=settings.keep_alive,
        proxies=settings.proxies,
    )


class Connection(Protocol):
    """What the sweep needs of a connection. Mutable: its mark."""

    address: str
    mark: Mark | None

    def progress(self, now: float) -> Mark: ...

    def expire(self, phase: Phase) -> None:
        """Close the connection: its client has taken too long."""

    def refuse_head(self) -> None:
        """See `unfinished_heads.Holder`."""


_MAPPED: Final = bytes(10) + b"\xff\xff"
"""Prefix of IPv4 addresses on an IPv6 socket."""


def network_of(address: str) -> str | bytes:
    """What counts as one address: an IPv4 address, or an IPv6 network of 64 bits, which is the least that a
    host gets. Empty for Unix sockets."""
    if ":" not in address:
        return address
    packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return socket.inet_ntop(socket.AF_INET, packed[12:]) if packed.startswith(_MAPPED) else packed[:8]


@dataclass(slots=True)
class Connections:
    """All client connections of a worker. On its event loop.

    The acceptor counts a connection from `accept` on; a TLS handshake may take long after that."""

    limits: ConnectionLimits
    on_close: Callable[[str], object] = lambda _reason: None
    """Called with one of CLOSE_REASONS for each connection that is closed because of a limit."""
    on_sweep: Callable[[int], object] = lambda _count: None
    """Called with the number of open connections each second, until it is 0."""
    clock: Callable[[], float] = time.monotonic
    on_change: Callable[[int], object] = lambda _count: None
    """Called with the number of connections when it changes, those being set up included."""
    open: set[Connection] = field(default_factory=set)
    heads: UnfinishedHeads = field(default_factory=UnfinishedHeads)
    _by_network: Counter[str | bytes] = field(default_factory=Counter)
    _setting_up: Counter[str | bytes] = field(default_factory=Counter)
    _arriving: int = 0
    """Sum of `_setting_up`."""
    _timer: asyncio.TimerHandle | None = None
    _swept: float = 0.0

    def set_up(self, address: str, *, capped: bool) -> bool:
        """Count a connection whose set-up begins. False if `capped` and there are too many already."""
        network = network_of(address)
        if capped and self._excessive(address, network, self._arriving, self._setting_up[network]):
            return False
        self._setting_up[network] += 1
        self._arriving += 1
        self._changed()
        return True

    def is_set_up(self, address: str) -> None:
        """The set-up has ended, and `admit` was called if it succeeded."""
        _decrease(self._setting_up, network_of(address))
        self._arriving -= 1
        self._changed()

    def admit(self, connection: Connection) -> bool:
        """Count a new connection; False if there are too many already."""
        network = network_of(connection.address)
        if self._excessive(connection.address, network, 0, 0):
            return False
        self.open.add(connection)
        self._by_network[network] += 1
        self._changed()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep_again)
        return True

    def forget(self, connection: Connection) -> None:
        """Stop counting a connection that was lost. Idempotent."""
        if connection in self.open:
            self.open.discard(connection)
            self.heads.finish(connection)
            _decrease(self._by_network, network_of(connection.address))
            self._changed()

    def head_grows(self, connection: Connection, size: int) -> None:
        """The headers of a request have begun to arrive: `size` bytes of them so far."""
        proxies, network = self.limits.proxies, network_of(connection.address)
        shared = not network or (proxies is not None and proxies.trusts(connection.address))
        self.heads.note(connection, connection if shared else network, size)

    def _excessive(self, address: str, network: str | bytes, others: int, others_of_network: int) -> bool:
        if len(self.open) + others >= self.limits.connections:
            self.on_close("too_many")
            return True
        if network and self._by_network[network] + others_of_network >= self.limits.connections_per_address:
            if self.limits.proxies is not None and self.limits.proxies.trusts(address):
                return False
            self.on_close("too_many_from_address")
            return True
        return False

    def _changed(self) -> None:
        self.on_change(len(self.open) + self._arriving)

    def _sweep_again(self) -> None:
        self._timer = None
        self.sweep()
        if self.open:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep_again)

    def sweep(self) -> None:
        """Close the connections of clients that take too long."""
        self.on_sweep(len(self.open))
        now, before = self.clock(), self._swept
        self._swept = now
        paused = now - before > 2 * SWEEP_SECONDS
        for connection in list(self.open):
            current = connection.progress(now)
            if paused or connection.mark is None:
                # The process was not running, so it does not know what its clients did meanwhile.
                connection.mark = current
                continue
            late, connection.mark = overdue(connection.mark, current, self.limits)
            if late:
                self.on_close(current.phase.value)
                connection.expire(current.phase)


def _decrease(counts: Counter[str | bytes], network: str | bytes) -> None:
    counts[network] -= 1
    if not counts[network]:
        del counts[network]
