"""Limits and budgets in Redis. See the protocol of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from adapters.store.protocol.limits import Amounts, Answer, Report, Share, Verdict
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
        rows = [
            (
                *(r.limits, r.slots, r.number, r.heard, r.granted, r.spent, r.running, r.held),
                *(r.need, r.worst, r.need_slots, r.more, r.more_slots),
            )
            for r in reports
        ]
        call = {"do": "lease", "worker": worker, "ttl": ttl_ms, "digest": digest, "again": again}
        reply = await self._limits([r.subject for r in reports], {**call, "reports": rows})
        verdict, subject, flow, wait_ms, booked, reserved, shares = reply
        return Answer(
            Verdict(verdict),
            subject,
            flow,
            wait_ms,
            bool(booked),
            tuple(map(_amounts, reserved)),
            tuple(map(_share, shares)),
        )

    async def seed(self, subject: str, used: Mapping[int, int]) -> None:
        await self._limits([subject], {"do": "seed", "used": {str(f): n for f, n in used.items()}})

    async def correct(self, subject: str, flow: int, period: int, more: int, *, settled: int) -> None:
        call = {"do": "correct", "flow": flow, "period": period, "more": more, "settled": settled}
        await self._limits([subject], call)

    async def looks(self, subjects: Sequence[tuple[str, Amounts]]) -> list[Share]:
        if not subjects:
            return []
        call = {"do": "look", "limits": [limits for _, limits in subjects]}
        return [_share(row) for row in await self._limits([name for name, _ in subjects], call)]

    async def claim_once(self, name: str, ttl_ms: int) -> bool:
        return bool(await self._bounded(self._redis.set(self._key("once", name), "1", nx=True, px=ttl_ms)))

    async def keep_claim(self, name: str, ttl_ms: int) -> None:
        await self._bounded(self._redis.pexpire(self._key("once", name), ttl_ms))

    async def _limits(self, subjects: Sequence[str], call: dict[str, Any]) -> Any:
        keys = [self._key("feed"), *(self._key("limit", subject) for subject in subjects)]
        return await self._run("limits", keys, [orjson.dumps(call).decode()], registry=False)


def _amounts(row: Sequence[int]) -> Amounts:
    a, b, c, d, e, f = row
    return a, b, c, d, e, f


def _share(row: Any) -> Share:
    granted, slots, levels, booked, used, shared, lapsed, running, idle, shortage, due = row
    return Share(
        _amounts(granted), slots, tuple(levels), tuple(booked), tuple(used), tuple(shared), tuple(lapsed),
        running, idle, bool(shortage), tuple(due),
    )  # fmt: skip
