"""Workers of this Florin beside those of one before, on one Redis."""

from __future__ import annotations

from adapters.model import SlotState
from adapters.store.protocol.placement import Touch
from adapters.store.redis import RedisStore
from tests.support.waiting import PATIENCE_S

NOW = 1_700_000_000_000


async def test_leases_of_earlier_workers_count_as_one_and_they_read_ours(valkey_url, prefix):
    store = RedisStore(valkey_url, prefix=prefix, clock=lambda: NOW, timeout=PATIENCE_S)
    key = f"{{{prefix}}}:leases:e1"
    try:
        for version in ("a", "b"):
            await store.claim(version, "e1", slots=2, owner="new", ttl_ms=1000)
            assert await store.confirm(version, "e1", owner="new", grace_ms=0)
        await store.touch("new", [Touch("e1", "a", 0, 40)], ttl_ms=1000)
        await store._redis.hset(key, "a|old", NOW + 1000)  # as earlier versions write it
        assert await store.leases("e1") == {"a": 41}

        # What an earlier version makes of ours: the versions whose number is a time to come.
        held = await store._redis.hgetall(key)
        assert {field.partition("|")[0] for field, at in held.items() if int(at) > NOW} == {"a"}
        for field, at in held.items():  # it sweeps out what has lapsed
            if int(at) <= NOW:
                await store._redis.hdel(key, field)
        assert await store.leases("e1") == {"a": 2}
        await store.touch("new", [Touch("e1", "a", 0, 40)], ttl_ms=1000)
        assert await store.leases("e1") == {"a": 41}
        await store.touch("new", [Touch("e1", "a", 0, 0)], ttl_ms=1000)
        await store._redis.hdel(key, "a|old")
        assert await store._redis.hgetall(key) == {}
        states = (await store.snapshot()).documents["placement"]
        assert all(SlotState.RESIDENT in text for text in states.values())
    finally:
        await store.close()
