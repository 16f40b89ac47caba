"""Documents, their feed, roles and secrets: what every store must keep alike."""

from __future__ import annotations

import asyncio

import pytest

from adapters.errors import ConflictError
from adapters.store import DOCUMENT_KINDS, Change, Event, GapError


async def collect(store, after, count):
    """The next `count` events."""
    found: list[Event] = []
    watch = store.watch(after)
    async with asyncio.timeout(10):
        async for batch in watch:
            found += batch
            if len(found) >= count:
                break
    await watch.aclose()
    return found


async def test_an_empty_store(world):
    snapshot = await world.store.snapshot()
    assert snapshot.seq == 0
    assert snapshot.documents == {kind: {} for kind in (*DOCUMENT_KINDS, "placement")}
    assert await world.store.commit([]) == 0


async def test_a_commit_is_seen_by_all_with_its_events(world):
    seq = await world.store.commit(
        [Change("tenant", "acme", '{"x": 1}'), Change("key", "k", "{}"), Change("tenant", "bolt", "{}")]
    )
    assert seq == 3
    await world.store.commit([Change("tenant", "bolt", None)])
    snapshot = await world.other.snapshot()
    assert snapshot.seq == 4
    assert snapshot.documents["tenant"] == {"acme": '{"x": 1}'}
    assert snapshot.documents["key"] == {"k": "{}"}
    assert await collect(world.other, 0, 4) == [
        Event(1, "tenant", "acme", '{"x": 1}'),
        Event(2, "key", "k", "{}"),
        Event(3, "tenant", "bolt", "{}"),
        Event(4, "tenant", "bolt", None),
    ]


async def test_expectations(world):
    store = world.store
    await store.commit([Change("tenant", "acme", "1", expect=None)])
    await store.commit([Change("tenant", "acme", "2", expect="1")])
    with pytest.raises(ConflictError, match="tenant acme"):
        await store.commit([Change("tenant", "acme", "3", expect="1")])
    with pytest.raises(ConflictError):
        await store.commit([Change("tenant", "acme", "3", expect=None)])
    with pytest.raises(ConflictError):
        await store.commit([Change("tenant", "nobody", "3", expect="1")])
    await store.commit([Change("tenant", "acme", None, expect="2")])
    assert (await store.snapshot()).documents["tenant"] == {}


async def test_a_commit_that_conflicts_changes_nothing(world):
    await world.store.commit([Change("tenant", "acme", "1")])
    changes = [
        Change("tenant", "bolt", "new"),
        Change("tenant", "acme", "2"),
        Change("key", "k", "x", expect="never there"),
    ]
    with pytest.raises(ConflictError, match="key k"):
        await world.store.commit(changes)
    snapshot = await world.store.snapshot()
    assert snapshot.seq == 1
    assert snapshot.documents["tenant"] == {"acme": "1"}


async def test_expectations_are_of_what_stood_before_the_commit(world):
    changes = [Change("tenant", "a", "1", expect=None), Change("tenant", "a", "2", expect=None)]
    await world.store.commit(changes)
    assert (await world.store.snapshot()).documents["tenant"] == {"a": "2"}


async def test_of_concurrent_changes_to_one_document_one_wins(world):
    await world.store.commit([Change("adapter", "acme/x", "0")])
    stores = [world.open() for _ in range(8)]
    outcomes = await asyncio.gather(
        *(
            store.commit([Change("adapter", "acme/x", f"by {n}", expect="0")])
            for n, store in enumerate(stores)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(o, int) for o in outcomes) == 1
    assert sum(isinstance(o, ConflictError) for o in outcomes) == 7


async def test_an_unknown_kind_is_a_mistake(world):
    with pytest.raises(ValueError, match="placement"):
        await world.store.commit([Change("placement", "e/v", "{}")])


async def test_a_watch_goes_on_with_what_comes(world):
    watching = asyncio.create_task(collect(world.other, 0, 40))
    for n in range(20):
        await world.store.commit([Change("tenant", str(n), "{}"), Change("key", str(n), "{}")])
    assert [e.seq for e in await watching] == list(range(1, 41))


async def test_a_quiet_feed_still_shows_that_it_lives(world):
    watch = world.store.watch(0)
    async with asyncio.timeout(5):
        assert await anext(watch) == []
        assert await anext(watch) == []
    await watch.aclose()


async def test_a_long_absence_is_made_up_for_in_batches(world):
    for start in range(0, 2500, 500):
        await world.store.commit([Change("tenant", str(n), "{}") for n in range(start, start + 500)])
    assert [e.seq for e in await collect(world.store, 3, 2497)] == list(range(4, 2501))


async def test_a_gap_is_noticed(world):
    await world.store.commit([Change("tenant", str(n), "{}") for n in range(10)])
    await world.trim(4)
    with pytest.raises(GapError):
        await collect(world.store, 5, 1)
    assert [e.seq for e in await collect(world.store, 6, 4)] == [7, 8, 9, 10]


async def test_a_feed_behind_its_follower_is_noticed(world):
    await world.store.commit([Change("tenant", "a", "{}")])
    with pytest.raises(GapError):
        await collect(world.store, 5, 1)


async def test_one_leads_until_it_resigns_or_is_gone(world):
    assert await world.store.lead("reconciler", "w1", 1000)
    assert not await world.other.lead("reconciler", "w2", 1000)
    assert await world.other.lead("janitor", "w2", 1000)
    world.advance(900)
    assert await world.store.lead("reconciler", "w1", 1000)
    world.advance(900)
    assert not await world.other.lead("reconciler", "w2", 1000)
    await world.other.resign("reconciler", "w2")
    assert not await world.other.lead("reconciler", "w2", 1000), "it resigned what it never held"
    world.advance(100)
    assert await world.other.lead("reconciler", "w2", 1000)
    assert not await world.store.lead("reconciler", "w1", 1000)
    await world.other.resign("reconciler", "w2")
    assert await world.store.lead("reconciler", "w1", 1000)


async def test_a_secret_is_made_once(world):
    assert await world.store.secret("salt", "first") == "first"
    assert await world.other.secret("salt", "second") == "first"
    assert await world.other.secret("other", "second") == "second"
