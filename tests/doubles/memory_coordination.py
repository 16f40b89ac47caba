"""The memory store's clock, roles, secrets and heartbeats."""

from __future__ import annotations

import time
from collections.abc import Callable

from adapters.errors import FencedError, StoreUnavailableError
from adapters.store.protocol.coordination import Fence, ServerInfo


class MemoryCoordination:
    """`clock`: ms. `away` = True makes every call fail as if the server could not be reached."""

    def __init__(self, clock: Callable[[], int] | None) -> None:
        self.away = False
        self._clock = clock or (lambda: time.monotonic_ns() // 1_000_000)
        self._roles: dict[str, tuple[int, int, str]] = {}
        self._secrets: dict[str, str] = {}
        self._format: int | None = None
        self._beats: dict[tuple[str, str], tuple[int, str]] = {}

    def _now(self) -> int:
        if self.away:
            raise StoreUnavailableError("Redis cannot be reached: the test says so.")
        return self._clock()

    async def lead(self, role: str, owner: str, ttl_ms: int) -> int:
        now = self._now()
        until, token, holder = self._roles.get(role, (0, now, ""))
        if holder != owner and (until > now or ttl_ms == 0):
            return 0
        if ttl_ms == 0:
            self._roles[role] = (0, token, "")
            return token
        token += holder != owner
        self._roles[role] = (now + ttl_ms, token, owner)
        return token

    def _check(self, fence: Fence | None) -> None:
        if fence is None:
            return
        _, token, holder = self._roles.get(fence.role, (0, 0, ""))
        if token != fence.token or not holder:
            raise FencedError(f"Another worker holds the role {fence.role} now; nothing was changed.")

    async def resign(self, role: str, owner: str) -> None:
        await self.lead(role, owner, 0)

    async def secret(self, name: str, fresh: str) -> str:
        self._now()
        return self._secrets.setdefault(name, fresh)

    async def registry_format(self) -> int | None:
        self._now()
        return self._format

    async def mark_registry(self, form: int) -> None:
        self._now()
        self._format = form

    async def time(self) -> int:
        return self._now() * 1000

    async def server_info(self) -> ServerInfo:
        self._now()
        return ServerInfo("memory", persistent=False)

    async def heartbeat(self, engine: str, text: str, *, ttl_ms: int) -> None:
        self._beats["engine", engine] = (self._now() + ttl_ms, text)

    async def heartbeats(self) -> dict[str, str]:
        return self._living("engine")

    async def announce(self, gateway: str, text: str, *, ttl_ms: int) -> None:
        self._beats["gateway", gateway] = (self._now() + ttl_ms, text)

    async def announced(self) -> dict[str, str]:
        return self._living("gateway")

    def _living(self, kind: str) -> dict[str, str]:
        now = self._now()
        self._beats = {name: beat for name, beat in self._beats.items() if beat[0] > now}
        return {name: text for (of, name), (_, text) in self._beats.items() if of == kind}
