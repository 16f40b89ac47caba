"""How gateways, their workers and engine agents coordinate: roles, heartbeats, shared secrets, one clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof of holding a role: the token returned by `lead`. A holder that has lost the role without noticing
    changes nothing with it."""

    role: str
    token: int


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server's own status; None if the server does not report it or denies access."""

    server: str
    """`valkey 8.1.1`."""
    persistent: bool | None = None
    """Whether acknowledged writes survive a restart, according to its settings."""
    trouble: str = ""
    """Disk write errors that it reports."""
    policy: str | None = None
    """Its `maxmemory-policy`: `noeviction` refuses writes when memory is full; every other policy loses
    data."""
    limit_bytes: int | None = None
    """Memory limit in bytes; 0 for none."""
    used_bytes: int | None = None
    replicas: int | None = None
    """Connected to it now."""


class CoordinationStore(Protocol):
    """Every method raises StoreUnavailableError if the server cannot be reached in time."""

    async def lead(self, role: str, owner: str, ttl_ms: int) -> int:
        """Acquire or renew a role. Returns a token above 0, higher for each new holder, or 0 if another owner
        holds it."""
        ...

    async def resign(self, role: str, owner: str) -> None: ...

    async def secret(self, name: str, fresh: str) -> str:
        """The installation's secret of that name; stores `fresh` if there is none."""
        ...

    async def registry_format(self) -> int | None:
        """The number of the format that the registry is written in. None: it is not recorded."""
        ...

    async def mark_registry(self, form: int) -> None:
        """Say it."""
        ...

    async def time(self) -> int:
        """Unix microseconds, by the server's clock."""
        ...

    async def server_info(self) -> ServerInfo: ...

    async def heartbeat(self, engine: str, text: str, *, ttl_ms: int) -> None:
        """Record a heartbeat of the agent of `engine`, with its report as JSON `text`. Not an event."""
        ...

    async def heartbeats(self) -> dict[str, str]:
        """Engine → the last report of its agent, for agents whose heartbeat has not expired."""
        ...

    async def announce(self, gateway: str, text: str, *, ttl_ms: int) -> None:
        """Let the other gateways know of this one for so long. Not an event."""
        ...

    async def announced(self) -> dict[str, str]:
        """Gateway → its last announcement, unless that has expired."""
        ...
