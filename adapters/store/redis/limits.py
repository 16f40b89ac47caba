"""Limits and budgets in Redis. See the protocol of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from adapters.store.protocol.limits import DAYS_REFUSED, Amounts, Answer, Flow, Report, Share, Verdict
from adapters.store.redis.server import RedisServer


class RedisLimits(RedisServer):
    """`LimitStore` in Redis. Its counters are not part of the registry: they are written also while that is
    read-only because Redis lost it."""

    async def lease(
        self,
        worker: str,
        reports: Sequence[Report],
        *,
        ttl_ms: int,
        digest: str = "",
        again: bool = False,
    ) -> Answer:
        call = {"do": "lease", "worker": worker, "ttl": ttl_ms, "digest": digest, "again": again}
        families = [self._key("limited-family", r.family) if r.family else self._key("feed") for r in reports]
        reply = await self._limits([r.subject for r in reports], {**call, "reports": reports}, families)
        verdict, subject, flow, wait_ms, booked, reserved, shares = reply
        return Answer(
            Verdict(verdict),
            subject,
            flow,
            wait_ms,
            bool(booked),
            tuple(map(tuple, reserved)),
            tuple(map(_share, shares)),
        )

    async def seed(self, subject: str, flows: Sequence[Flow], used: Sequence[int]) -> None:
        await self._limits([subject], {"do": "seed", "flows": flows, "used": used})

    async def correct(self, subject: str, flow: Flow, period: int, more: int, *, settled: int) -> None:
        call = {"do": "correct", "flow": flow.name, "period": period, "more": more, "settled": settled}
        await self._limits([subject], call)

    async def looks(self, subjects: Sequence[tuple[str, Sequence[Flow], Amounts]]) -> list[Share]:
        if not subjects:
            return []
        looks = [{"flows": flows, "limits": limits} for _, flows, limits in subjects]
        rows = await self._limits([name for name, _, _ in subjects], {"do": "look", "looks": looks})
        return [_share(row) for row in rows]

    async def add_refused(self, day: int, refused: Mapping[str, Mapping[str, int]]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for tenant, limits in refused.items():
                key = self._key("refused", tenant, str(day))
                for limit, count in limits.items():
                    pipe.hincrby(key, limit, count)
                pipe.expire(key, DAYS_REFUSED * 86_400)
            await self._bounded(pipe.execute())

    async def refused(self, tenant: str, days: Sequence[int]) -> list[dict[str, int]]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for day in days:
                pipe.hgetall(self._key("refused", tenant, str(day)))
            rows = await self._bounded(pipe.execute())
        return [{limit: int(count) for limit, count in row.items()} for row in rows]

    async def claim_once(self, name: str, ttl_ms: int) -> bool:
        return bool(await self._bounded(self._redis.set(self._key("once", name), "1", nx=True, px=ttl_ms)))

    async def keep_claim(self, name: str, ttl_ms: int) -> None:
        await self._bounded(self._redis.pexpire(self._key("once", name), ttl_ms))

    async def _limits(
        self, subjects: Sequence[str], call: dict[str, Any], families: Sequence[str] = ()
    ) -> Any:
        keys = [self._key("feed"), *(self._key("limited", subject) for subject in subjects), *families]
        return await self._run("limits", keys, [orjson.dumps(call).decode()], registry=False)


def _share(row: Any) -> Share:
    granted, slots, used, booked, shared, lapsed, running, idle, shortage, due = row
    return Share(
        tuple(granted), slots, tuple(used), tuple(booked), tuple(shared), tuple(lapsed),
        running, idle, bool(shortage), tuple(due),
    )  # fmt: skip
