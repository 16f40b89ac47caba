"""Finds the server to talk to: behind Sentinels, the service's primary; in a Cluster, the primary of the one
slot that holds all keys.

Either is asked anew for each connection. A server that is no longer the primary says so, or closes its
connections; the failed call is the caller's to repeat, and the next connection goes to the new primary. So
everything else, scripts and transactions too, works as on a single server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot

from adapters.store.redis.tls import TlsConnection

Address = tuple[str, int]

KINDS: Final = ("sentinel", "cluster")
_LOGIN: Final = ("username", "password")
_PORTS: Final = {"sentinel": 26379, "cluster": 6379}
_MOVED: Final = (redis_errors.ReadOnlyError, redis_errors.AskError, redis_errors.ClusterError)
"""What a server answers that is not, or no longer, the primary."""
_AWAY: Final = (redis_errors.RedisError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Seeds:
    """A URL with several servers: `redis+sentinel://[user:password@]host[:port],…/service[/db]` or
    `redis+cluster://…host[:port],…`; with `rediss`, all connections are TLS."""

    kind: str
    servers: tuple[Address, ...]
    service: str
    """Sentinel's name of the primary and its replicas."""
    options: Mapping[str, Any]
    """redis-py's, for connections to the primary."""
    own: Mapping[str, Any]
    """The same, for connections to the servers that are asked."""
    tls: bool

    @classmethod
    def of(cls, url: str) -> Seeds | None:
        """None: the URL is of a single server. Raises ValueError."""
        scheme, _, rest = url.partition("://")
        base, _, kind = scheme.partition("+")
        if kind not in KINDS or base not in {"redis", "rediss"}:
            return None
        rest, question, query = rest.partition("?")
        netloc, _, path = rest.partition("/")
        login, separator, hosts = netloc.rpartition("@")
        service = ""
        if kind == "sentinel":
            service, _, path = path.partition("/")
            if not service:
                raise ValueError("needs the service's name: redis+sentinel://HOST,HOST/SERVICE")
        servers = tuple(_address(host, _PORTS[kind]) for host in hosts.split(","))
        options = dict(parse_url(f"{base}://{login}{separator}host/{path}{question}{query}"))
        for name in ("host", "port", "connection_class"):
            options.pop(name, None)
        if kind == "cluster" and options.get("db"):
            raise ValueError("a Cluster has only database 0")
        sentinels = {name: options.pop(f"sentinel_{name}", None) for name in _LOGIN}
        logins = sentinels if kind == "sentinel" else {name: options.get(name) for name in _LOGIN}
        own = {name: value for name, value in options.items() if name not in {*_LOGIN, "db"}}
        tls = base == "rediss"
        options["connection_class"] = _TlsToPrimary if tls else _ToPrimary
        return cls(kind, servers, service, options, own | logins, tls)

    def finder(self, tag: str, timeout: float) -> Finder:
        """`tag`: any key. `timeout`: seconds for each server that is asked."""
        return Finder(self, tag, timeout)


class Finder:
    """Finds the primary. Mutable: the order in which servers are asked; one that did not help goes to the
    end, so that after a timeout the next call begins with another."""

    def __init__(self, seeds: Seeds, tag: str, timeout: float) -> None:
        self._seeds = seeds
        self._servers = deque(seeds.servers)
        self._slot = key_slot(tag.encode())
        self._options: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),  # redis-py's default waits for seconds before the next is asked
            "decode_responses": True,
            "protocol": 2,
            **seeds.own,
        }

    async def find(self) -> tuple[Address, Address]:
        """The primary, and the server that named it. Raises ConnectionError: none knows a primary."""
        failures = []
        for address in tuple(self._servers):
            host, port = address
            server = (TlsConnection if self._seeds.tls else Connection)(host=host, port=port, **self._options)
            try:
                primary = await self._ask(server)
            except _AWAY as error:
                failures.append(f"{host}:{port}: {error}")
            else:
                if primary is not None:
                    return (primary[0] or host, primary[1]), address
                failures.append(f"{host}:{port} knows no primary")
            finally:
                await _drop(server)
            self.doubt(address)
        raise redis_errors.ConnectionError("; ".join(failures))

    def doubt(self, address: Address) -> None:
        """Ask others first from now on: this one is away, or its answer was wrong."""
        if self._servers[0] == address:  # else another connection has said so already
            self._servers.rotate(-1)

    async def _ask(self, server: AbstractConnection) -> Address | None:
        if self._seeds.kind == "sentinel":
            primary = await _call(server, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._seeds.service)
            return (primary[0], int(primary[1])) if primary else None
        return primary_of(await _call(server, "CLUSTER", "SLOTS"), self._slot)


async def _drop(server: AbstractConnection) -> None:
    """Without waiting for the end of TLS."""
    writer = server._writer  # noqa: SLF001  # it has no public way
    if writer is not None:
        writer.transport.abort()
    await server.disconnect(nowait=True)


async def _call(server: AbstractConnection, *command: str) -> Any:
    await server.connect()  # type: ignore[no-untyped-call]  # redis-py's
    await server.send_command(*command)
    return await server.read_response()


def primary_of(slots: Sequence[Any], slot: int) -> Address | None:
    """`slots`: the reply of CLUSTER SLOTS: first and last slot, the primary, its replicas. The host is
    empty if the server that was asked does not know its own."""
    for first, last, primary, *_ in slots:
        if first <= slot <= last:
            host, port = primary[:2]
            return ("" if host in {None, "?"} else host), int(port)
    return None


class _ToPrimary(Connection):
    """A connection to whichever server is the primary when it connects."""

    def __init__(self, *, finder: Finder, **options: Any) -> None:
        super().__init__(**options)
        self._finder = finder
        self._named_by = ("", 0)

    async def _connect(self) -> None:
        (self.host, self.port), self._named_by = await self._finder.find()
        try:
            await super()._connect()  # type: ignore[no-untyped-call]  # redis-py's
        except BaseException:  # also a deadline: what was said may be out of date
            self._finder.doubt(self._named_by)
            raise

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)
        except _MOVED as error:
            self._finder.doubt(self._named_by)
            await self.disconnect()
            raise redis_errors.ConnectionError(f"this server is not the primary: {error}") from error


class _TlsToPrimary(_ToPrimary, TlsConnection):
    """The same by TLS."""


def _address(host: str, default: int) -> Address:
    """Raises ValueError."""
    parts = urlsplit(f"//{host}")
    if not parts.hostname or parts.username or parts.path:
        raise ValueError(f"{host!r} is no HOST or HOST:PORT")
    return parts.hostname, parts.port or default
