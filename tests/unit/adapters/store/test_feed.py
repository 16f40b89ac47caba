"""The follower: current while connected, patient while cut off, whole again afterwards."""

from __future__ import annotations

import asyncio
import logging

import pytest

from adapters.errors import StoreUnavailableError
from adapters.store import feed
from adapters.store.feed import Follower
from adapters.store.protocol.registry import Change
from tests.doubles.memory_store import MemoryStore
from tests.support.waiting import PATIENCE_S


class Mirror:
    """A view that knows the tenants."""

    def __init__(self):
        self.tenants = {}
        self.loads = 0

    def load(self, documents):
        self.tenants = dict(documents["tenant"])
        self.loads += 1

    def apply(self, event):
        if event.data == "poison":
            raise ValueError(event.id)
        if event.kind == "tenant":
            if event.data is None:
                self.tenants.pop(event.id, None)
            else:
                self.tenants[event.id] = event.data


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def view():
    return Mirror()


@pytest.fixture
async def follower(store, view):
    follower = Follower(store, [view])
    yield follower
    await follower.close()


async def followed(follower, condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await follower.changed()


async def test_start_loads_what_is_there(store, view, follower):
    await store.commit([Change("tenant", "acme", "1")])
    assert not follower.connected
    await follower.start()
    assert view.tenants == {"acme": "1"}
    assert (follower.connected, follower.seq) == (True, 1)


async def test_start_without_a_store_fails(store, follower):
    store.away = True
    with pytest.raises(StoreUnavailableError):
        await follower.start()


async def test_events_reach_the_view(store, view, follower):
    await follower.start()
    await store.commit([Change("tenant", "acme", "1"), Change("tenant", "bolt", "1")])
    seq = await store.commit([Change("tenant", "acme", None)])
    assert await follower.wait_for(seq, PATIENCE_S)
    assert view.tenants == {"bolt": "1"}
    assert view.loads == 1


async def test_waiting_for_what_does_not_come_ends(follower):
    await follower.start()
    assert not await follower.wait_for(1, 0.01)
    assert await follower.wait_for(0, 0.01)


async def test_an_outage_is_survived_and_made_up_for(store, view, follower, caplog):
    caplog.set_level(logging.INFO)
    await store.commit([Change("tenant", "acme", "1")])
    await follower.start()
    store.away = True
    await followed(follower, lambda: not follower.connected)
    await asyncio.sleep(4 * feed.FIRST_PAUSE)
    assert view.tenants == {"acme": "1"}, "what it knew, it knows"

    store.away = False
    seq = await store.commit([Change("tenant", "bolt", "1")])
    assert await follower.wait_for(seq, PATIENCE_S)
    assert follower.connected
    assert view.tenants == {"acme": "1", "bolt": "1"}
    assert view.loads == 2
    down, up = (r.message for r in caplog.records)
    assert down.startswith("Redis is unavailable; serving from memory: ")
    assert up == "Redis is reachable again; views are current as of change 2"


async def test_after_a_gap_comes_a_fresh_snapshot(store, view, follower):
    await follower.start()
    store.away = True
    await followed(follower, lambda: not follower.connected)
    store.away = False
    seq = await store.commit([Change("tenant", str(n), "1") for n in range(50)])
    store.trim(1)
    assert await follower.wait_for(seq, PATIENCE_S)
    assert len(view.tenants) == 50


async def test_a_gap_while_connected_is_repaired(store, view, follower):
    await follower.start()
    await asyncio.sleep(0)
    await store.commit([Change("tenant", "a", "1"), Change("tenant", "b", "1")])
    store.trim(1)
    assert await follower.wait_for(2, PATIENCE_S)
    assert set(view.tenants) == {"a", "b"}
    assert view.loads == 2


async def test_one_bad_document_stops_nothing(store, view, follower, caplog):
    await follower.start()
    seq = await store.commit([Change("tenant", "bad", "poison"), Change("tenant", "good", "1")])
    assert await follower.wait_for(seq, PATIENCE_S)
    assert view.tenants == {"good": "1"}
    assert "failed to apply tenant bad" in caplog.text


async def test_all_who_wait_are_woken_at_once(store, follower):
    await follower.start()
    waiters = [asyncio.create_task(follower.changed()) for _ in range(500)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    await store.commit([Change("tenant", "acme", "1")])
    async with asyncio.timeout(PATIENCE_S):
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert outcomes[1:] == [None] * 499


async def test_it_can_be_closed_at_any_time(store, follower):
    await follower.close()
    await follower.start()
    store.away = True
    await followed(follower, lambda: not follower.connected)
    await follower.close()
    await follower.close()
    assert not follower.connected
