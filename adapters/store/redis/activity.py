"""Last uses and last errors in Redis. See the protocol of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from adapters.store.protocol.activity import ERRORS_KEPT_SECONDS, KEPT_ERRORS, KEPT_USES
from adapters.store.redis.server import RedisServer


class RedisActivity(RedisServer):
    """`ActivityStore` in Redis. Plain commands: whatever order several workers' reports come in, the result
    is the same but for the order of errors."""

    async def report_activity(self, uses: Mapping[str, int], errors: Mapping[str, Sequence[str]]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            if uses:
                pipe.zadd(self._key("last_use"), dict(uses), gt=True)
                pipe.zremrangebyrank(self._key("last_use"), 0, -KEPT_USES - 1)
            for owner, texts in errors.items():
                key = self._key("errors", owner)
                pipe.lpush(key, *texts)
                pipe.ltrim(key, 0, KEPT_ERRORS - 1)
                pipe.expire(key, ERRORS_KEPT_SECONDS)
            await self._bounded(pipe.execute(), operation="activity")

    async def last_uses(self, ids: Sequence[str]) -> dict[str, int]:
        if not ids:
            return {}
        scores = await self._bounded(self._redis.zmscore(self._key("last_use"), list(ids)))
        return {id_: int(used_at) for id_, used_at in zip(ids, scores, strict=True) if used_at is not None}

    async def last_errors(self, owner: str) -> list[str]:
        [errors] = await self.last_errors_of([owner])
        return errors

    async def last_errors_of(self, owners: Sequence[str]) -> list[list[str]]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for owner in owners:
                pipe.lrange(self._key("errors", owner), 0, -1)
            return [list(texts) for texts in await self._bounded(pipe.execute())]
