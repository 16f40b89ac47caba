"""What workers tell each other of deaths, over one store."""

from __future__ import annotations

import pytest

from adapters.errors import StoreUnavailableError
from adapters.store.feed import Follower
from adapters.store.protocol.registry import Event
from gateway.errors import FlorinError
from gateway.routing.engine_deaths import HANG_KIND, KIND, REQUEST_HANGS, DeathTracker
from gateway.routing.query_of_death import FORGET
from gateway.routing.request_identity import RequestIdentity
from tests.doubles.memory_store import MemoryStore
from tests.support.waiting import PATIENCE_S, until

GROUP = ("evil", "evil/a")


class Worker:
    def __init__(self, name: str, store: MemoryStore) -> None:
        self.counted: list[tuple[str, str]] = []
        self.watch = DeathTracker(store, name, lambda *who: self.counted.append(who))
        self.follower = Follower(store, [self.watch])


def identity(text: str = "KILL", group=GROUP) -> RequestIdentity:
    return RequestIdentity(group, what="/v1/x fl-1", payload=text.encode(), key=b"k")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def workers(store: MemoryStore):
    made = [Worker("w1", store), Worker("w2", store)]
    for worker in made:
        await worker.follower.start()
    yield made
    for worker in made:
        await worker.follower.close()


async def heard(store: MemoryStore, *workers: Worker) -> None:
    for worker in workers:
        assert await worker.follower.wait_for((await store.snapshot()).position.seq, PATIENCE_S)


async def test_a_death_is_heard_by_the_others_and_counted_once(store, workers):
    one, two = workers
    one.watch.died("a", [identity().suspect(begun=False)])
    await one.watch.report()
    await heard(store, one, two)
    assert one.watch.suspects.suspected(GROUP)
    assert two.watch.suspects.suspected(GROUP)
    assert (one.counted, two.counted) == ([GROUP], [])
    two.watch.died("b", [identity().suspect(begun=False)])
    await two.watch.report()
    await heard(store, one, two)
    for worker in workers:
        assert worker.watch.suspects.refused(identity().fingerprint) > 0


async def test_what_was_answered_on_one_worker_is_cleared_on_all(store, workers):
    one, two = workers
    one.watch.died("a", [identity().suspect(begun=False)])
    await one.watch.report()
    await heard(store, one, two)
    two.watch.answered(identity())
    await two.watch.report()
    await heard(store, one, two)
    assert not one.watch.suspects.suspected(GROUP)


async def test_a_new_worker_learns_from_the_snapshot(store, workers):
    one, _ = workers
    for engine in "ab":
        one.watch.died(engine, [identity().suspect(begun=False)])
        await one.watch.report()
    one.watch.died("c", [identity("other").suspect(begun=False)])
    one.watch.answered(identity("other"))
    await one.watch.report()
    late = Worker("w3", store)
    await late.follower.start()
    assert late.watch.suspects.refused(identity().fingerprint) > 0
    assert late.watch.suspects._requests[identity("other").fingerprint].deaths == 0
    deaths = late.watch.suspects._requests[identity().fingerprint].deaths
    await late.follower._load()  # as after a gap: nothing counts twice
    assert late.watch.suspects._requests[identity().fingerprint].deaths == deaths
    await late.follower.close()


async def test_with_the_store_away_it_is_told_later(store, workers):
    one, two = workers
    store.away = True
    one.watch.died("a", [identity().suspect(begun=False)])
    with pytest.raises(StoreUnavailableError):
        await one.watch.report()
    assert one.watch.suspects.suspected(GROUP)
    store.away = False
    await one.watch.report()
    await until(lambda: two.watch.suspects.suspected(GROUP))
    assert not one.watch._reports


async def test_there_are_few_documents_and_old_ones_go(store, workers):
    one, two = workers
    for number in range(20):
        one.watch.died("ab"[number % 2], [identity(str(number)).suspect(begun=False)])
        one.watch.answered(identity(str(number)))
        await one.watch.report()
    await heard(store, one, two)
    assert set((await store.snapshot()).documents[KIND]) == {"a/w1", "b/w1", "/w1"}
    two.watch._wall = lambda: 1e10 + FORGET
    await two.watch._sweep()
    assert not (await store.snapshot()).documents[KIND]
    await heard(store, one, two)
    assert not one.watch._heard


@pytest.mark.parametrize("data", ["[]", "null", "{}", "x", '{"at": "x"}', '{"at": 1e15, "requests": [[1]]}'])
async def test_a_report_that_cannot_be_read_stops_nothing(workers, data: str):
    one, _ = workers
    one.watch.apply(Event(1, KIND, "a/w9", data))
    one.watch.load({KIND: {"a/w8": data}})
    assert not one.watch.suspects.any


async def test_nothing_of_a_request_is_stored_in_clear(store, workers):
    one, _ = workers
    one.watch.died("a", [identity("my secret prompt").suspect(begun=False)])
    await one.watch.report()
    assert "secret" not in str((await store.snapshot()).documents[KIND])


def test_a_refusal_says_how_long():
    watch = DeathTracker(MemoryStore(), "w", lambda *_: None)
    for engine in "abc":
        watch.refuse_group(GROUP)
        watch.died(engine, [identity(engine).suspect(begun=False)])
    with pytest.raises(FlorinError) as caught:
        watch.refuse_group(GROUP)
    assert (caught.value.code, caught.value.status, caught.value.retry_after) == (
        "adapter_suspended",
        503,
        30,
    )
    watch.refuse_group(("good", "good/a"))


def test_a_fingerprint_is_of_one_tenant_and_one_request():
    same = {identity().fingerprint for _ in range(3)}
    assert len(same) == 1
    others = [
        identity("KILL "),
        identity(group=("good", "evil/a")),
        RequestIdentity(GROUP, what="/v1/y fl-1", payload=b"KILL", key=b"k"),
        RequestIdentity(GROUP, what="/v1/x fl-1", payload=b"KILL", key=b"other"),
    ]
    assert len(same.union(p.fingerprint for p in others)) == 5


def test_a_long_payload_is_let_go_and_told_apart_by_ends_and_length():
    body = b"x" * 1_000_000
    prints = {identity("").fingerprint}
    for payload in (body, body + b"y", body + b"x", b"y" + body):
        p = RequestIdentity(GROUP, what="", payload=payload, key=b"k")
        p.begin()
        assert p._payload == b""
        prints.add(p.fingerprint)
    assert len(prints) == 5


async def test_the_others_hear_of_a_hang_at_once_whether_requests_were_there_or_not(store: MemoryStore):
    one, two = (DeathTracker(store, name, lambda *_: None, hangs=True) for name in ("w1", "w2"))
    followers = [Follower(store, [watch]) for watch in (one, two)]
    heard: list[tuple[str, str]] = []
    one.on_report = lambda engine: heard.append(("w1", engine))
    two.on_report = lambda engine: heard.append(("w2", engine))
    for follower in followers:
        await follower.start()
    one.died("a", [])
    await one.report()
    for follower in followers:
        assert await follower.wait_for((await store.snapshot()).position.seq, PATIENCE_S)
        await follower.close()
    assert heard == [("w2", "a")]
    assert list((await store.snapshot()).documents[HANG_KIND]) == ["a/w1"]
    assert not (await store.snapshot()).documents[KIND]


async def test_a_request_is_held_back_at_its_third_hang_and_its_tenant_never(store: MemoryStore):
    watch = DeathTracker(store, "w", lambda *_: None, hangs=True)
    for number in range(REQUEST_HANGS):
        assert not watch.refused(identity())
        watch.died(f"e{number}", [identity().suspect(begun=False), identity("other").suspect(begun=False)])
        watch.answered(identity("other"))
    assert watch.refused(identity()) > 0
    assert not watch.refused(identity("other"))
    assert not watch.refused(identity("KILL", ("acme", "acme/a")))
