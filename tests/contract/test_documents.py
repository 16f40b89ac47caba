"""Documents, their feed, roles and secrets: what every store must keep alike."""

from __future__ import annotations

import asyncio

import pytest

from adapters.errors import ConflictError, FencedError
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.registry import DOCUMENT_KINDS, AuditNote, Change, Event, GapError
from tests.support.waiting import PATIENCE_S


async def collect(store, after, count):
    """The next `count` events."""
    found: list[Event] = []
    watch = store.watch(after)
    async with asyncio.timeout(PATIENCE_S):
        async for batch in watch:
            found += batch
            if len(found) >= count:
                break
    await watch.aclose()
    return found


async def test_an_empty_store(installation):
    snapshot = await installation.store.snapshot()
    assert snapshot.seq == 0
    assert snapshot.documents == {kind: {} for kind in (*DOCUMENT_KINDS, "placement")}
    assert await installation.store.commit([]) == 0


async def test_the_servers_time_is_in_microseconds(installation):
    before = await installation.store.time()
    installation.advance(1500)
    assert await installation.other.time() - before == 1_500_000


async def test_a_commit_is_seen_by_all_with_its_events(installation):
    seq = await installation.store.commit(
        [Change("tenant", "acme", '{"x": 1}'), Change("key", "k", "{}"), Change("tenant", "bolt", "{}")]
    )
    assert seq == 3
    await installation.store.commit([Change("tenant", "bolt", None)])
    snapshot = await installation.other.snapshot()
    assert snapshot.seq == 4
    assert snapshot.documents["tenant"] == {"acme": '{"x": 1}'}
    assert snapshot.documents["key"] == {"k": "{}"}
    assert await collect(installation.other, 0, 4) == [
        Event(1, "tenant", "acme", '{"x": 1}'),
        Event(2, "key", "k", "{}"),
        Event(3, "tenant", "bolt", "{}"),
        Event(4, "tenant", "bolt", None),
    ]


async def test_expectations(installation):
    store = installation.store
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


async def test_a_commit_that_conflicts_changes_nothing(installation):
    await installation.store.commit([Change("tenant", "acme", "1")])
    changes = [
        Change("tenant", "bolt", "new"),
        Change("tenant", "acme", "2"),
        Change("key", "k", "x", expect="never there"),
    ]
    with pytest.raises(ConflictError, match="key k"):
        await installation.store.commit(changes)
    snapshot = await installation.store.snapshot()
    assert snapshot.seq == 1
    assert snapshot.documents["tenant"] == {"acme": "1"}


async def test_expectations_are_of_what_stood_before_the_commit(installation):
    changes = [Change("tenant", "a", "1", expect=None), Change("tenant", "a", "2", expect=None)]
    await installation.store.commit(changes)
    assert (await installation.store.snapshot()).documents["tenant"] == {"a": "2"}


async def test_of_concurrent_changes_to_one_document_one_wins(installation):
    await installation.store.commit([Change("adapter", "acme/x", "0")])
    stores = [installation.open() for _ in range(8)]
    outcomes = await asyncio.gather(
        *(
            store.commit([Change("adapter", "acme/x", f"by {n}", expect="0")])
            for n, store in enumerate(stores)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(o, int) for o in outcomes) == 1
    assert sum(isinstance(o, ConflictError) for o in outcomes) == 7


async def test_an_unknown_kind_is_a_mistake(installation):
    with pytest.raises(ValueError, match="placement"):
        await installation.store.commit([Change("placement", "e/v", "{}")])


async def test_a_watch_goes_on_with_what_comes(installation):
    watching = asyncio.create_task(collect(installation.other, 0, 40))
    for n in range(20):
        await installation.store.commit([Change("tenant", str(n), "{}"), Change("key", str(n), "{}")])
    assert [e.seq for e in await watching] == list(range(1, 41))


async def test_a_quiet_feed_still_shows_that_it_lives(installation):
    watch = installation.store.watch(0)
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(watch) == []
        assert await anext(watch) == []
    await watch.aclose()


async def test_a_long_absence_is_made_up_for_in_batches(installation):
    for start in range(0, 2500, 500):
        await installation.store.commit([Change("tenant", str(n), "{}") for n in range(start, start + 500)])
    assert [e.seq for e in await collect(installation.store, 3, 2497)] == list(range(4, 2501))


async def test_a_gap_is_noticed(installation):
    await installation.store.commit([Change("tenant", str(n), "{}") for n in range(10)])
    await installation.trim(4)
    with pytest.raises(GapError):
        await collect(installation.store, 5, 1)
    assert [e.seq for e in await collect(installation.store, 6, 4)] == [7, 8, 9, 10]


async def test_a_feed_behind_its_follower_is_noticed(installation):
    await installation.store.commit([Change("tenant", "a", "{}")])
    with pytest.raises(GapError):
        await collect(installation.store, 5, 1)


async def test_one_leads_until_it_resigns_or_is_gone(installation):
    assert await installation.store.lead("reconciler", "w1", 1000)
    assert not await installation.other.lead("reconciler", "w2", 1000)
    assert await installation.other.lead("janitor", "w2", 1000)
    installation.advance(900)
    assert await installation.store.lead("reconciler", "w1", 1000)
    installation.advance(900)
    assert not await installation.other.lead("reconciler", "w2", 1000)
    await installation.other.resign("reconciler", "w2")
    assert not await installation.other.lead("reconciler", "w2", 1000), "it resigned what it never held"
    installation.advance(100)
    assert await installation.other.lead("reconciler", "w2", 1000)
    assert not await installation.store.lead("reconciler", "w1", 1000)
    await installation.other.resign("reconciler", "w2")
    assert await installation.store.lead("reconciler", "w1", 1000)


async def test_a_secret_is_made_once(installation):
    assert await installation.store.secret("salt", "first") == "first"
    assert await installation.other.secret("salt", "second") == "first"
    assert await installation.other.secret("other", "second") == "second"


async def test_the_registry_s_format(installation):
    assert await installation.other.registry_format() is None
    await installation.store.mark_registry(2)
    assert await installation.other.registry_format() == 2
    await installation.other.mark_registry(3)
    assert await installation.store.registry_format() == 3


async def test_a_token_is_kept_while_the_holder_stays_and_rises_with_each_new_one(installation):
    first = await installation.store.lead("reconciler", "w1", 1000)
    assert first > 0
    installation.advance(5000)
    assert await installation.store.lead("reconciler", "w1", 1000) == first, "nobody came between"
    installation.advance(5000)
    second = await installation.other.lead("reconciler", "w2", 1000)
    assert second > first
    assert await installation.other.lead("janitor", "w2", 1000) > 0, "roles have tokens of their own"
    await installation.other.resign("reconciler", "w2")
    third = await installation.other.lead("reconciler", "w2", 1000)
    assert third > second, "what it began before it resigned is not its business any more"
    assert await installation.store.lead("reconciler", "w1", 1000) == 0


async def test_a_stale_fence_changes_nothing(installation):
    fence = Fence("reconciler", await installation.store.lead("reconciler", "w1", 1000))
    note = AuditNote("reconciler", "version.fail", "acme/a")
    await installation.store.commit([Change("tenant", "a", "1")], fence=fence)
    await installation.store.claim("v", "e1", slots=1, owner="w1", ttl_ms=1000)
    installation.advance(2000)
    await installation.store.commit(
        [Change("tenant", "a", "2")], fence=fence
    )  # lapsed, but still nobody else's
    await installation.other.lead("reconciler", "w2", 1000)
    before = await installation.store.snapshot()
    for call in (
        installation.store.commit([Change("tenant", "a", "3")], audit=note, fence=fence),
        installation.store.unplace("e1", "v", fence=fence),
        installation.store.unplace("e1", fence=fence),
        installation.store.mark_lost("e1", fence=fence),
        installation.store.mark_lost("e1", fence=Fence("no-such-role", 1)),
    ):
        with pytest.raises(FencedError):
            await call
    assert await installation.store.snapshot() == before
    assert await installation.store.audit() == []


async def test_a_resigned_fence_is_stale(installation):
    fence = Fence("reconciler", await installation.store.lead("reconciler", "w1", 1000))
    await installation.store.resign("reconciler", "w1")
    with pytest.raises(FencedError):
        await installation.store.commit([Change("tenant", "a", "1")], fence=fence)


async def test_a_stale_fence_is_told_from_a_conflict(installation):
    fence = Fence("reconciler", await installation.store.lead("reconciler", "w1", 1000))
    with pytest.raises(ConflictError, match="tenant a") as caught:
        await installation.store.commit([Change("tenant", "a", "1", expect="never")], fence=fence)
    assert not isinstance(caught.value, FencedError)


async def test_a_note_is_there_exactly_when_its_changes_are(installation):
    note = AuditNote("key:k1", "adapter.promote", "acme/support", "v3", {"weight": 10, "é": ["\n"]})
    await installation.store.commit([Change("adapter", "acme/support", "1")], audit=note)
    with pytest.raises(ConflictError):
        await installation.store.commit([Change("adapter", "acme/support", "2", expect="no")], audit=note)
    installation.advance(5)
    seq = await installation.other.commit([], audit=AuditNote("bootstrap", "adapter.remove", "acme/x"))
    assert seq == 1, "a note is no event"
    first, second = await installation.other.audit()
    assert first.note == note
    assert second.note == AuditNote("bootstrap", "adapter.remove", "acme/x")
    assert second.at - first.at == 5000
    assert first.at == (installation.now - 5) * 1000


async def test_notes_of_one_millisecond_keep_their_order(installation):
    for n in range(12):
        await installation.store.commit([], audit=AuditNote("a", "x.y", str(n)))
    entries = await installation.store.audit(count=4)
    while len(entries) < 12:
        entries += await installation.store.audit(entries[-1].id, count=4)
    assert [e.note.subject for e in entries] == [str(n) for n in range(12)]
    assert await installation.store.audit(entries[-1].id) == []


@pytest.mark.parametrize(
    ("through", "keep", "left"),
    [(5, 0, 4), (5, 3, 4), (5, 6, 6), (9, 0, 0), (9, 2, 2), (9, 10, 10), (9, 99, 10)],
)
async def test_what_is_stored_elsewhere_is_dropped_but_the_newest(installation, through, keep, left):
    for n in range(10):
        await installation.store.commit([], audit=AuditNote("a", "x.y", str(n)))
        installation.advance(n % 2)
    entries = await installation.store.audit()
    await installation.store.trim_audit(entries[through].id, keep=keep)
    assert await installation.store.audit() == entries[10 - left :]


@pytest.mark.parametrize(("beat", "living"), [("heartbeat", "heartbeats"), ("announce", "announced")])
async def test_agent_or_gateway_is_alive_until_its_heartbeat_expires(installation, beat, living):
    ours, theirs = installation.store, installation.other
    await getattr(ours, beat)("e1", '{"pid": 1}', ttl_ms=1000)
    await getattr(theirs, beat)("e2", "two\nlines", ttl_ms=3000)
    installation.advance(900)
    await getattr(ours, beat)("e1", '{"pid": 2}', ttl_ms=1000)
    assert await getattr(ours, living)() == {"e1": '{"pid": 2}', "e2": "two\nlines"}
    installation.advance(1000)
    assert await getattr(theirs, living)() == {"e2": "two\nlines"}
    installation.advance(2000)
    assert await getattr(ours, living)() == {}
    assert (await ours.snapshot()).seq == 0, "a heartbeat is no event"
