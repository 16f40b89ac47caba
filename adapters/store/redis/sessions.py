"""The console's sessions in Redis. See the protocol of the same name."""

from __future__ import annotations

from adapters.store.redis.server import RedisServer


class RedisSessions(RedisServer):
    """`SessionStore` in Redis: one string for each, which expires."""

    async def put_session(self, digest: str, text: str, *, ttl_ms: int) -> None:
        await self._bounded(self._redis.set(self._key("session", digest), text, px=ttl_ms))

    async def session(self, digest: str) -> str | None:
        document: str | None = await self._bounded(self._redis.get(self._key("session", digest)))
        return document

    async def take_session(self, digest: str) -> str | None:
        key = self._key("session", digest)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(key)
            pipe.delete(key)
            replies: list[str | None] = await self._bounded(pipe.execute())
        return replies[0]
