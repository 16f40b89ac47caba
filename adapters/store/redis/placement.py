"""Placement, recency and leases in Redis. See the protocol of the same name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.loads import NONE, Heard, Loads, dump_report, read_reports
from adapters.store.protocol.placement import KEPT_MOVES, Claim, ClaimResult, Touch
from adapters.store.redis.server import RedisServer


class RedisPlacement(RedisServer):
    """`PlacementStore` in Redis."""

    async def claim(
        self,
        version: str,
        engine: str,
        *,
        slots: int,
        owner: str,
        ttl_ms: int,
        cpu_slots: int = 0,
        ignore: Iterable[str] = (),
        reload: bool = False,
        replica: bool = False,
        max_replicas: int | None = None,
        grace_ms: int = 0,
    ) -> Claim:
        ignored = sorted(set(ignore) - {engine})
        keys = [*self._placement_keys(engine), self._key("doc", "pin")]
        for name in ignored:
            keys += self._engine_keys(name)
        tiers = [slots, max(slots, cpu_slots)]
        how = [int(reload), int(replica), grace_ms, max_replicas or 0]
        arguments = [engine, version, owner, ttl_ms, *tiers, *how, *ignored]
        result, where, victim, *unload = await self._run("claim", keys, arguments)
        return Claim(ClaimResult(result), where, victim or None, tuple(unload))

    async def confirm(
        self, version: str, engine: str, *, owner: str, grace_ms: int, verified: str = ""
    ) -> bool:
        arguments = [engine, version, owner, grace_ms, verified]
        return bool(await self._run("confirm", self._placement_keys(engine), arguments))

    async def abandon(self, version: str, engine: str, *, owner: str) -> bool:
        return bool(await self._run("abandon", self._placement_keys(engine), [engine, version, owner]))

    async def unplace(self, engine: str, version: str | None = None, *, fence: Fence | None = None) -> None:
        role, token = self._fence(fence)
        keys = [*self._placement_keys(engine), role]
        self._check_fence(fence, await self._run("unplace", keys, [engine, version or "", token]))

    async def mark_lost(
        self, engine: str, versions: Iterable[str] | None = None, *, fence: Fence | None = None
    ) -> None:
        role, token = self._fence(fence)
        keys = [*self._placement_keys(engine), role]
        arguments = [engine, token, int(versions is None), *(versions or ())]
        self._check_fence(fence, await self._run("mark_lost", keys, arguments))

    async def touch(
        self, worker: str, touches: Sequence[Touch], *, ttl_ms: int, loads: Loads = NONE, note: Any = None
    ) -> Heard:
        engines = sorted({t.engine for t in touches})
        keys = [self._key("feed"), self._key("loads")]
        place = {}
        for engine in engines:
            place[engine] = len(keys) + 1  # Lua counts from 1
            keys += self._engine_keys(engine)
        uses = [[place[t.engine], t.version, t.age_ms, t.in_flight] for t in touches]
        arguments = [worker, ttl_ms, json.dumps(uses), dump_report(loads, note)]
        replies = await self._run("touch", keys, arguments)
        return read_reports(dict(zip(replies[::2], replies[1::2], strict=True)))

    async def record_move(self, record: str) -> None:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.lpush(self._key("moves"), record)
            pipe.ltrim(self._key("moves"), 0, KEPT_MOVES - 1)
            await self._bounded(pipe.execute())

    async def moves(self) -> list[str]:
        records: list[str] = await self._bounded(self._redis.lrange(self._key("moves"), 0, -1))
        return records

    async def recency(self, engine: str) -> dict[str, int]:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.time()
            for tier in ("recency", "cached"):
                pipe.zrange(self._key(tier, engine), 0, -1, withscores=True)
            time, slots, cached = await self._bounded(pipe.execute())
        return _ages(slots, cached, self._ms(time))

    async def leases(self, engine: str) -> dict[str, int]:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.hgetall(self._key("leases", engine))
            time, leases = await self._bounded(pipe.execute())
        return _live(leases, self._ms(time))

    async def use(self, engines: Sequence[str]) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.time()
            for engine in engines:
                for tier in ("recency", "cached"):
                    pipe.zrange(self._key(tier, engine), 0, -1, withscores=True)
                pipe.hgetall(self._key("leases", engine))
            time, *replies = await self._bounded(pipe.execute())
        now = self._ms(time)
        each = zip(engines, replies[::3], replies[1::3], replies[2::3], strict=True)
        return {
            engine: (_ages(slots, cached, now), _live(leases, now)) for engine, slots, cached, leases in each
        }

    def _engine_keys(self, engine: str) -> list[str]:
        return [self._key("recency", engine), self._key("leases", engine)]

    def _placement_keys(self, engine: str) -> list[str]:
        shared = map(self._key, ("feed", "placement", "until", "where"))
        return [*shared, *self._engine_keys(engine), self._key("cached", engine)]


def _ages(slots: list[tuple[str, float]], cached: list[tuple[str, float]], now: int) -> dict[str, int]:
    scores = sorted(slots + cached, key=lambda score: (-score[1], score[0]))
    return {version: max(0, now - int(last)) for version, last in scores}


def _live(leases: dict[str, str], now: int) -> dict[str, int]:
    live: dict[str, int] = {}
    for lease, deadline in leases.items():
        if not lease.endswith("|n") and int(deadline) > now:
            version = lease.partition("|")[0]
            live[version] = live.get(version, 0) + int(leases.get(f"{lease}|n", 1))
    return live
