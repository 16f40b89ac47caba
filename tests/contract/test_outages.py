"""A server that stops, restarts, or loses its data: only a real one can show it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing

import pytest
from redis.asyncio import Redis

from adapters.errors import StoreUnavailableError
from adapters.store.embedded import EmbeddedValkey
from adapters.store.feed import Follower
from adapters.store.protocol.placement import ClaimResult, Touch
from adapters.store.protocol.registry import Change, GapError
from adapters.store.redis import RedisStore
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
def server(tmp_path):
    """One of this test's own, to be mistreated."""
    with EmbeddedValkey(tmp_path) as server:
        yield server


@pytest.fixture
async def store(server):
    store = RedisStore(server.url, timeout=PATIENCE_S)
    yield store
    await store.close()


class Tenants:
    def __init__(self):
        self.known = set()

    def load(self, documents):
        self.known = set(documents["tenant"])

    def apply(self, event):
        if event.kind == "tenant":
            self.known.add(event.id)


async def kill(server):
    os.kill(server.pid, signal.SIGKILL)
    await until(lambda: not server.alive)
    await asyncio.sleep(0)  # the loop learns of the closed connections


async def first_batch(store):
    async with aclosing(store.watch(0)) as batches:
        return await anext(batches)


async def every_call(store):
    calls = (
        store.snapshot(),
        store.commit([Change("tenant", "a", "1")]),
        store.claim("v", "e", slots=1, owner="w", ttl_ms=1000),
        store.confirm("v", "e", owner="w", grace_ms=1),
        store.abandon("v", "e", owner="w"),
        store.unplace("e"),
        store.mark_lost("e"),
        store.audit(),
        store.trim_audit("1-0", keep=1),
        store.heartbeat("e", "{}", ttl_ms=1000),
        store.heartbeats(),
        store.announce("g", "{}", ttl_ms=1000),
        store.announced(),
        store.server_info(),
        store.touch("w", [Touch("e", "v", 0, 1)], ttl_ms=1000),
        store.recency("e"),
        store.leases("e"),
        store.use(["e"]),
        store.registry_format(),
        store.mark_registry(1),
        store.time(),
        store.lead("r", "w", 1000),
        store.resign("r", "w"),
        store.secret("s", "x"),
        first_batch(store),
    )
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_without_a_server_every_call_says_so(server, store):
    await store.commit([Change("tenant", "a", "1")])
    await kill(server)
    outcomes = await every_call(store)
    assert [type(o) for o in outcomes] == [StoreUnavailableError] * len(outcomes)


async def test_a_server_that_hangs_is_given_up_within_three_seconds(server, store):
    await store.commit([Change("tenant", "a", "1")])
    hurried = RedisStore(server.url)
    assert hurried._timeout < 3
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError, match="timed out"):
            await hurried.commit([Change("tenant", "a", "1")])
        with pytest.raises(StoreUnavailableError):
            await anext(hurried.watch(1))
    finally:
        os.kill(server.pid, signal.SIGCONT)
        await hurried.close()
    await store.commit([Change("tenant", "b", "1")])


async def test_what_was_acknowledged_survives_a_kill(server, store):
    acknowledged = []

    async def register(worker):
        for n in range(10_000):
            try:
                await store.commit([Change("tenant", f"{worker}-{n}", "{}")])
            except StoreUnavailableError:
                return
            acknowledged.append(f"{worker}-{n}")

    working = asyncio.gather(*(register(w) for w in range(4)))

    await until(lambda: len(acknowledged) >= 100)
    await kill(server)
    await working
    server.start()
    snapshot = await store.snapshot()
    assert set(acknowledged) <= set(snapshot.documents["tenant"])
    assert snapshot.seq == len(snapshot.documents["tenant"])
    assert await store.commit([Change("tenant", "next", "{}")]) == snapshot.seq + 1


async def test_placement_and_scripts_survive_a_restart(server, store):
    await store.claim("v", "e", slots=1, owner="w", ttl_ms=60_000)
    await kill(server)
    server.start()
    await asyncio.sleep(0.05)  # the loop hears that its old connections are gone
    assert (await store.claim("v", "e", slots=1, owner="w2", ttl_ms=1)).result is ClaimResult.LOADING
    assert await store.confirm("v", "e", owner="w", grace_ms=0)


async def test_a_follower_catches_up_when_the_server_is_back(server, store):
    view = Tenants()
    await store.commit([Change("tenant", "before", "{}")])
    follower = Follower(store, [view])
    await follower.start()
    await kill(server)
    async with asyncio.timeout(PATIENCE_S):
        while follower.connected:
            await follower.changed()
    assert view.known == {"before"}
    server.start()
    await asyncio.sleep(0.05)
    seq = await store.commit([Change("tenant", "after", "{}")])
    assert await follower.wait_for(seq, PATIENCE_S)
    assert follower.connected
    assert view.known == {"before", "after"}
    await follower.close()


async def test_watchers_notice_lost_data(server, store):
    seq = await store.commit([Change("tenant", str(n), "{}") for n in range(5)])
    watch = store.watch(seq)
    assert await anext(watch) == []
    async with Redis.from_url(server.url) as redis:
        await redis.flushall()
    with pytest.raises(GapError):
        await asyncio.wait_for(anext(watch), PATIENCE_S)
    await watch.aclose()


async def test_a_server_that_may_not_write_is_unavailable(server, store):
    async with Redis.from_url(server.url) as redis:
        await redis.replicaof("127.0.0.1", "1")
        with pytest.raises(StoreUnavailableError, match="replica"):
            await store.commit([Change("tenant", "a", "1")])
        await redis.replicaof("NO", "ONE")
        await redis.config_set("maxmemory", 1)
        with pytest.raises(StoreUnavailableError, match="refused"):
            await store.commit([Change("tenant", "a", "1")])
        await redis.config_set("maxmemory", 0)
    assert await store.commit([Change("tenant", "a", "1")]) == 1


async def test_an_abandoned_watch_leaves_no_connection(server, store):
    watch = store.watch(0)
    await anext(watch)
    async with Redis.from_url(server.url) as redis:
        before = len(await redis.client_list())
        await watch.aclose()

        async def fewer():
            return len(await redis.client_list()) < before

        await until(fewer)


async def test_a_cancelled_call_ends_wherever_it_was(store):
    async def work():
        while True:
            await store.leases("e")

    for steps in range(40):
        task = asyncio.create_task(work())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        _, running = await asyncio.wait([task], timeout=PATIENCE_S)
        assert not running, f"cancelled after {steps} steps, it goes on"


async def test_forbidden_command_is_reported_as_unavailable(server, store):
    async with Redis.from_url(server.url) as redis:
        await redis.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
    with pytest.raises(StoreUnavailableError, match="refused"):
        await store.commit([Change("tenant", "a", "1")])
