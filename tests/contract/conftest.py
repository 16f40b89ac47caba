"""The stores under the one suite, behind a clock that the tests set."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from adapters.store.protocol import Store
from adapters.store.redis import RedisStore
from tests.doubles.memory_store import MemoryStore
from tests.support.valkey_servers import restricted
from tests.support.waiting import PATIENCE_S


@dataclass
class StoreInstallation:
    """One installation: `store` and, as another worker sees it, `other`. They are logged in as the user that the
    documentation recommends."""

    kind: str
    url: str = ""
    prefix: str = ""
    now: int = 1_700_000_000_000
    opened: list[Store] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = self.open()
        self.other = self.open()

    def open(self) -> Store:
        if self.kind == "memory":
            store: Store = self.opened[0] if self.opened else MemoryStore(clock=lambda: self.now)
        else:
            with BlockingRedis.from_url(self.url) as server:
                server.execute_command(*restricted(self.prefix, "secret"))
            url = self.url.replace("unix://", f"unix://{self.prefix}:secret@")
            store = RedisStore(url, prefix=self.prefix, clock=lambda: self.now, timeout=PATIENCE_S)
        self.opened.append(store)
        return store

    def advance(self, ms: int) -> None:
        self.now += ms

    async def trim(self, keep: int) -> None:
        """The server drops old events."""
        if isinstance(self.store, MemoryStore):
            self.store.trim(keep)
            return
        async with Redis.from_url(self.url) as redis:
            await redis.xtrim(f"{{{self.prefix}}}:feed", maxlen=keep, approximate=False)

    async def close(self) -> None:
        for store in self.opened:
            await store.close()


@pytest.fixture(params=["memory", "valkey"])
async def installation(request, fresh_prefix, valkey_url):
    installation = StoreInstallation(request.param, valkey_url, fresh_prefix())
    yield installation
    await installation.close()
