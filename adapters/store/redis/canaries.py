"""Counts of canaries in Redis. See the protocol of the same name."""

from __future__ import annotations

from collections.abc import Mapping

from adapters.store.redis.server import RedisServer


class RedisCanaries(RedisServer):
    """`CanaryStore` in Redis. Plain commands: counts only grow, so the order of reports does not matter."""

    async def count_canaries(self, counts: Mapping[str, tuple[int, Mapping[str, int]]]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for comparison, (kept_ms, fields) in counts.items():
                key = self._key("canary", comparison)
                for field, count in fields.items():
                    pipe.hincrby(key, field, count)
                pipe.pexpire(key, kept_ms)
            await self._bounded(pipe.execute(), operation="activity")

    async def canary_counts(self, comparison: str) -> dict[str, int]:
        counts = await self._bounded(self._redis.hgetall(self._key("canary", comparison)))
        return {field: int(count) for field, count in counts.items()}
