"""Roles, heartbeats, secrets and the clock in Redis. See the protocol of the same name."""

from __future__ import annotations

from typing import Any

from redis import exceptions as redis_errors

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.coordination import ServerInfo
from adapters.store.redis.server import RedisServer


class RedisCoordination(RedisServer):
    """`CoordinationStore` in Redis."""

    async def lead(self, role: str, owner: str, ttl_ms: int) -> int:
        keys = [self._key("feed"), self._key("role", role)]
        return int(await self._run("lead", keys, [owner, ttl_ms]))

    async def resign(self, role: str, owner: str) -> None:
        await self.lead(role, owner, 0)

    async def secret(self, name: str, fresh: str) -> str:
        key = self._key("secret", name)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.setnx(key, fresh)
            pipe.get(key)
            _, secret = await self._bounded(pipe.execute())
        return str(secret)

    async def registry_format(self) -> int | None:
        number = await self._bounded(self._redis.get(self._key("format")))
        return None if number is None else int(number)

    async def mark_registry(self, form: int) -> None:
        await self._bounded(self._redis.set(self._key("format"), form))

    async def time(self) -> int:
        seconds, micros = await self._bounded(self._redis.time())
        return self._clock() * 1000 if self._clock else int(seconds) * 1_000_000 + int(micros)

    async def server_info(self) -> ServerInfo:
        try:
            info = await self._bounded(self._redis.info())
        except StoreUnavailableError as error:
            if isinstance(error.__cause__, redis_errors.NoPermissionError):
                return ServerInfo("Redis")
            raise
        try:
            saves = (await self._bounded(self._redis.config_get("save"))).get("save")
        except (StoreUnavailableError, redis_errors.ResponseError):  # many hosted servers disallow CONFIG
            saves = None
        return parse_server_info(info, saves)

    async def heartbeat(self, engine: str, text: str, *, ttl_ms: int) -> None:
        await self._beat("heartbeats", engine, text, ttl_ms)

    async def heartbeats(self) -> dict[str, str]:
        return await self._living("heartbeats")

    async def announce(self, gateway: str, text: str, *, ttl_ms: int) -> None:
        await self._beat("gateways", gateway, text, ttl_ms)

    async def announced(self) -> dict[str, str]:
        return await self._living("gateways")

    async def _beat(self, key: str, name: str, text: str, ttl_ms: int) -> None:
        await self._run("heartbeat", [self._key("feed"), self._key(key)], [name, ttl_ms, text])

    async def _living(self, key: str) -> dict[str, str]:
        living = await self._run("heartbeats", [self._key("feed"), self._key(key)], [])
        return dict(zip(living[::2], living[1::2], strict=True))


def parse_server_info(info: dict[str, Any], saves: str | None) -> ServerInfo:
    """`saves`: the server's `save` setting; None if unknown."""
    log = bool(info.get("aof_enabled"))
    trouble = [
        f"{what}: {info[key]}"
        for key, what in (
            ("aof_last_write_status", "append-only file"),
            ("rdb_last_bgsave_status", "snapshot"),
        )
        if info.get(key, "ok") != "ok"
    ]
    name, version = info.get("server_name", "redis"), info.get("valkey_version", info.get("redis_version"))
    return ServerInfo(
        server=f"{name} {version}",
        persistent=True if log else None if saves is None else bool(saves),
        trouble="; ".join(trouble),
        policy=info.get("maxmemory_policy"),
        limit_bytes=info.get("maxmemory"),
        used_bytes=info.get("used_memory"),
        replicas=info.get("connected_slaves"),
    )
