"""ensure_resident, with the store's twin, a steered clock and an engine that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import pytest

from adapters.drivers.driver import Listing
from adapters.errors import (
    EngineError,
    EngineSuspectError,
    EngineUnreachableError,
    LoadFailedError,
    NoEngineError,
    PlacementError,
    QuarantinedError,
    StoreUnavailableError,
)
from adapters.model import Adapter, Drain, Engine, Guard, Placement, SlotState, Trial, Version, load
from adapters.placement.loader import CLAIM_MS, Loader
from adapters.placement.recent_failures import FIRST_BACKOFF, MAX_BACKOFF
from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from adapters.registry.serving_status import SURE
from tests.doubles.memory_store import MemoryStore

E1 = Engine("e1", "http://e1", "base", "h100", slots=1, max_rank=8)
E2 = Engine("e2", "http://e2", "base", "h100", slots=1, max_rank=8)


def version(name: str) -> Version:
    return Version(f"t/{name}", 1, "sha256:0", f"fl-{name}", f"/x/{name}", "base", 8, 1, "/src", 0)


@dataclass
class FakeControl:
    """Records what is asked of engines; `on_load` may wait or raise."""

    takes: Callable[[], None] = lambda: None
    """Called during each load: may move the clock."""
    loads: list[tuple[str, str]] = field(default_factory=list)
    unloads: list[tuple[str, str]] = field(default_factory=list)
    holding: dict[str, set[str]] = field(default_factory=dict)
    gate: asyncio.Event | None = None
    error: Exception | None = None
    lies: bool = False

    async def load(self, engine: Engine, wanted: Version) -> None:
        self.loads.append((engine.name, wanted.engine_name))
        if self.gate:
            await self.gate.wait()
        self.takes()
        if self.error:
            raise self.error
        if not self.lies:
            self.holding.setdefault(engine.name, set()).add(wanted.engine_name)

    async def unload(self, engine: Engine, engine_name: str) -> None:
        self.unloads.append((engine.name, engine_name))
        self.holding.get(engine.name, set()).discard(engine_name)

    async def serving(self, engine: Engine) -> Listing:
        return Listing({"base": "/base"}, frozenset(self.holding.get(engine.name, set())), None)


class Silent:
    def adapter_load(self, engine: Engine, version: Version, result: str, seconds: float) -> None: ...

    def eviction(self, engine: str) -> None: ...


class LoaderHarness:
    """Workers that share a store and a control, on one clock of seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = MemoryStore(clock=lambda: int(self.now * 1000))
        self.control = FakeControl()

    def loader(self, owner: str) -> Loader:
        catalog = Catalog()
        catalog.engines = {"e1": E1, "e2": E2}

        async def changed(_: float) -> None:
            await asyncio.sleep(0)
            await self.hear(loader)

        async def nothing() -> None: ...

        loader = Loader(
            store=self.store,
            catalog=catalog,
            residency=Residency(lambda: self.now),
            control=self.control,  # type: ignore[arg-type]
            observer=Silent(),
            owner=owner,
            usable=lambda _: True,
            changed=changed,
            before_claim=nothing,
            clock=lambda: self.now,
        )
        loader.serving_statuses.clock = lambda: int(self.now * 1e6)
        return loader

    async def hear(self, loader: Loader) -> None:
        """As the follower does."""
        documents = (await self.store.snapshot()).documents
        engines = loader.catalog.engines
        loader.catalog.load(documents)
        loader.catalog.engines = engines
        loader.residency.load(documents)


@pytest.fixture
def bench() -> LoaderHarness:
    return LoaderHarness()


def only(engine: Engine):
    return lambda failed: None if engine.name in failed else engine


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_only_loads_that_the_engine_did_are_timed_and_only_its_own_part(bench: LoaderHarness):
    loader, times = bench.loader("w1"), list[tuple[str, str, float]]()
    loader.steps.timed = lambda engine, version, seconds: times.append((engine.name, version.id, seconds))

    def pass_by() -> None:
        bench.now += 0.25

    class Slow:
        async def verify(self, _engine: Engine, _version: Version) -> str:
            bench.now += 5
            return ""

        def is_suspect(self, _engine: Engine) -> bool:
            return False

    bench.control.takes, loader.verifier = pass_by, Slow()  # type: ignore[assignment]
    wide = replace(E1, slots=2)
    await asyncio.gather(*(loader.ensure_resident(version(n), only(wide), deadline=60) for n in "ab"))
    assert times == [("e1", "t/a@v1", 0.25), ("e1", "t/b@v1", 0.25)]
    bench.control.error = EngineError("no", 500)
    with pytest.raises(LoadFailedError):
        await loader.ensure_resident(version("c"), only(E2), deadline=60)
    assert len(times) == 2


async def test_all_who_wait_share_one_load_and_leaving_stops_nothing(bench: LoaderHarness):
    loader, bench.control.gate = bench.loader("w1"), asyncio.Event()
    waiters = [
        asyncio.ensure_future(loader.ensure_resident(version("a"), only(E1), deadline=30)) for _ in range(5)
    ]
    await turns()
    for waiter in waiters[:4]:
        waiter.cancel()
    bench.control.gate.set()
    assert await waiters[4] == "e1"
    assert bench.control.loads == [("e1", "fl-a")]


async def test_one_of_all_who_waited_answers_for_the_load(bench: LoaderHarness):
    loader, other = bench.loader("w1"), bench.loader("w2")
    for who in (loader, loader, other):
        await who.ensure_resident(version("a"), only(E1), deadline=30)
    await loader.ensure_resident(version("b"), only(E2), deadline=30)
    assert [loader.loads_since(version("a"), "e1") for _ in range(3)] == [1, 0, 0]
    assert loader.loads_since(version("a"), "e2") == 0
    assert loader.loads_since(version("b"), "e2") == 1
    assert other.loads_since(version("a"), "e1") == 0
    assert loader.loads_since(None, "e1") == 0


async def test_workers_wait_for_each_others_load(bench: LoaderHarness):
    first, second, bench.control.gate = bench.loader("w1"), bench.loader("w2"), asyncio.Event()
    one = asyncio.ensure_future(first.ensure_resident(version("a"), only(E1), deadline=30))
    await turns()
    two = asyncio.ensure_future(second.ensure_resident(version("a"), only(E2), deadline=30))
    await turns()
    bench.control.gate.set()
    assert await asyncio.gather(one, two) == ["e1", "e1"]
    assert len(bench.control.loads) == 1


async def test_the_load_of_a_dead_worker_is_taken_over(bench: LoaderHarness):
    first, second = bench.loader("w1"), bench.loader("w2")
    bench.control.gate = asyncio.Event()
    dead = asyncio.ensure_future(first.ensure_resident(version("a"), only(E1), deadline=30))
    await turns()
    dead.cancel()
    await first.close()
    bench.control.gate = None
    waiter = asyncio.ensure_future(second.ensure_resident(version("a"), only(E1), deadline=30))
    await turns()
    assert not waiter.done()
    bench.now += CLAIM_MS / 1000 + 1
    assert await waiter == "e1"
    assert len(bench.control.loads) == 2


async def test_a_load_that_always_outlasts_its_first_claim_ends(bench: LoaderHarness):
    loader = bench.loader("w1")
    loads = 0

    class Slow:
        async def verify(self, engine: Engine, loaded: Version) -> str:
            nonlocal loads
            loads += 1
            bench.now += 3 * CLAIM_MS / 1000
            return ""

        def is_suspect(self, engine: Engine) -> bool:
            return False

    loader.verifier = Slow()
    deadline = 20 * CLAIM_MS / 1000
    assert await loader.ensure_resident(version("a"), only(E1), deadline=deadline) == "e1"
    assert loads == 3  # with claims of one, two and four times CLAIM_MS


async def test_the_victim_is_unloaded_first(bench: LoaderHarness):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    bench.now += 5
    await loader.ensure_resident(version("b"), only(E1), deadline=30)
    assert bench.control.unloads == [("e1", "fl-a")]
    assert bench.control.holding["e1"] == {"fl-b"}


async def test_an_engine_that_is_away_is_left_for_another(bench: LoaderHarness):
    loader, bench.control.error = bench.loader("w1"), EngineUnreachableError("gone")

    def choose(failed):
        if "e1" not in failed:
            return E1
        bench.control.error = None
        return E2

    assert await loader.ensure_resident(version("a"), choose, deadline=30) == "e2"
    assert list(await bench.store.recency("e1")) == []  # the slot was given back


async def test_a_refused_load_is_told_at_once_and_tried_again_later(bench: LoaderHarness):
    loader, bench.control.error = bench.loader("w1"), EngineError("rank of fl-a in /x/a is wrong", 500)
    for _ in range(3):
        with pytest.raises(LoadFailedError, match=r"rank of t/a@v1 in its files is wrong"):
            await loader.ensure_resident(version("a"), only(E1), deadline=30)
    assert len(bench.control.loads) == 1
    bench.now += FIRST_BACKOFF + 0.1
    bench.control.error = None
    assert await loader.ensure_resident(version("a"), only(E1), deadline=30) == "e1"


async def test_a_200_is_not_believed(bench: LoaderHarness):
    loader, bench.control.lies = bench.loader("w1"), True
    with pytest.raises(LoadFailedError, match="does not list it"):
        await loader.ensure_resident(version("a"), only(E1), deadline=30)
    assert list(await bench.store.recency("e1")) == []


async def test_a_full_engine_is_waited_for_until_the_deadline(bench: LoaderHarness):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)  # under its grace: not to be evicted
    waiter = asyncio.ensure_future(loader.ensure_resident(version("b"), only(E1), deadline=0.5))
    await turns()
    bench.now += 0.6
    with pytest.raises(PlacementError):
        await waiter


async def test_nowhere_to_go_is_said_at_once(bench: LoaderHarness):
    with pytest.raises(NoEngineError):
        await bench.loader("w1").ensure_resident(version("a"), lambda _: None, deadline=30)


async def test_a_forgotten_version_is_loaded_again_where_it_was(bench: LoaderHarness):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    bench.control.holding.clear()
    assert await loader.ensure_resident(version("a"), only(E2), deadline=30, reload_on="e1") == "e1"
    assert bench.control.loads == [("e1", "fl-a")] * 2


# -- verification and verdicts


@dataclass
class FakeVerifier:
    """`finds`: engine → what is wrong there, as the verifier would raise it. `gate` holds the verdict back."""

    loader: Loader
    finds: dict[str, Exception] = field(default_factory=dict)
    suspects: set[str] = field(default_factory=set)
    gate: asyncio.Event | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def verify(self, engine: Engine, wanted: Version) -> str:
        self.asked.append((engine.name, wanted.engine_name))
        if self.gate:
            await self.gate.wait()
        wrong = self.finds.get(engine.name)
        if isinstance(wrong, QuarantinedError):
            await self.loader.serving_statuses.quarantine(
                wanted, "unlike_itself", str(wrong), engine.name, {}
            )
        if wrong:
            raise wrong
        return f"{engine.name} p1"

    def is_suspect(self, engine: Engine) -> bool:
        return engine.name in self.suspects


def verified(loader: Loader, **finds: Exception) -> FakeVerifier:
    verifier = FakeVerifier(loader, finds)
    loader.verifier = verifier
    return verifier


def either(failed):
    return next((e for e in (E1, E2) if e.name not in failed), None)


async def test_a_version_is_verified_between_load_and_confirmation(bench: LoaderHarness):
    loader = bench.loader("w1")
    verifier = verified(loader)
    verifier.gate = asyncio.Event()
    waiter = asyncio.ensure_future(loader.ensure_resident(version("a"), only(E1), deadline=30))
    await turns()
    assert (bench.control.loads, verifier.asked) == ([("e1", "fl-a")], [("e1", "fl-a")])
    placed = (await bench.store.snapshot()).documents["placement"]["e1/fl-a"]
    assert '"loading"' in placed
    verifier.gate.set()
    assert await waiter == "e1"
    placed = (await bench.store.snapshot()).documents["placement"]["e1/fl-a"]
    assert load(Placement, placed).verified == "e1 p1"


async def test_a_version_that_is_unloaded_while_it_is_verified_is_loaded_again(bench: LoaderHarness):
    """As the victim of another version, whose claim was earlier and whose load comes late."""
    loader = bench.loader("w1")

    class Disturbed(FakeVerifier):
        async def verify(self, engine: Engine, wanted: Version) -> str:
            verified = await super().verify(engine, wanted)
            if len(self.asked) == 1:
                await bench.control.unload(engine, wanted.engine_name)
                raise EngineError("e1 returned HTTP 404: no such model", status=404)
            return verified

    loader.verifier = Disturbed(loader)
    assert await loader.ensure_resident(version("a"), only(E1), deadline=30) == "e1"
    assert bench.control.holding["e1"] == {"fl-a"}
    assert bench.control.loads == [("e1", "fl-a")] * 2


async def test_an_engine_that_lists_a_version_but_does_not_know_it_refuses_it(bench: LoaderHarness):
    loader = bench.loader("w1")
    verified(loader, e1=EngineError("e1 returned HTTP 404: no such model", status=404))
    with pytest.raises(LoadFailedError, match="no such model"):
        await loader.ensure_resident(version("a"), only(E1), deadline=30)
    assert bench.control.holding["e1"] == set()


async def test_a_loader_killed_while_it_verifies_is_succeeded_by_one_that_verifies(bench: LoaderHarness):
    first, second = bench.loader("w1"), bench.loader("w2")
    verified(first).gate = asyncio.Event()
    dead = asyncio.ensure_future(first.ensure_resident(version("a"), only(E1), deadline=30))
    await turns()
    dead.cancel()
    await first.close()
    wrong = verified(second, e1=QuarantinedError("it is wrong"))
    bench.now += CLAIM_MS / 1000 + 1
    with pytest.raises(QuarantinedError):
        await second.ensure_resident(version("a"), only(E1), deadline=100)
    assert wrong.asked == [("e1", "fl-a")]
    assert (await bench.store.snapshot()).documents["placement"] == {}


async def test_what_is_quarantined_is_off_every_engine_and_refused_at_once_by_every_worker(
    bench: LoaderHarness,
):
    first, second = bench.loader("w1"), bench.loader("w2")
    verified(first)
    assert await first.ensure_resident(version("a"), only(E1), deadline=30) == "e1"
    await bench.hear(second)
    verified(second, e2=QuarantinedError("t/a@v1 answered otherwise"))
    with pytest.raises(QuarantinedError, match="t/a@v1 answered otherwise"):
        await second.ensure_resident(version("a"), only(E2), deadline=30, avoid={"e1"})
    assert bench.control.holding == {"e1": set(), "e2": set()}
    assert (await bench.store.snapshot()).documents["placement"] == {}
    for loader in (first, second):
        await bench.hear(loader)
        for again in (False, True):
            with pytest.raises(QuarantinedError, match="t/a@v1 answered otherwise"):
                await loader.ensure_resident(version("a"), either, deadline=30, again=again)
    assert len(bench.control.loads) == 2


async def test_who_waits_for_a_load_that_ends_in_quarantine_is_told_and_does_not_load(bench: LoaderHarness):
    first, second = bench.loader("w1"), bench.loader("w2")
    verifier = verified(first, e1=QuarantinedError("it is wrong"))
    verifier.gate = asyncio.Event()
    one = asyncio.ensure_future(first.ensure_resident(version("a"), only(E1), deadline=30))
    await turns()
    two = asyncio.ensure_future(second.ensure_resident(version("a"), only(E2), deadline=30))
    await turns()
    verifier.gate.set()
    for waiter in (one, two):
        with pytest.raises(QuarantinedError):
            await waiter
    assert bench.control.loads == [("e1", "fl-a")]


async def test_a_suspect_engine_is_left_for_another_and_blames_no_version(bench: LoaderHarness):
    loader = bench.loader("w1")
    verifier = verified(loader, e1=EngineSuspectError("e1 is suspect"))
    assert await loader.ensure_resident(version("a"), either, deadline=30) == "e2"
    assert bench.control.holding["e1"] == set()  # nothing is left there unverified
    verifier.suspects.add("e1")
    bench.now += 5  # past the grace of what was loaded
    assert await loader.ensure_resident(version("b"), either, deadline=30) == "e2"
    assert [e for e, _ in verifier.asked] == ["e1", "e2", "e2"]
    verifier.finds["e2"] = EngineSuspectError("nor is e2")
    for _ in range(SURE + 1):
        bench.now += MAX_BACKOFF + 1
        with pytest.raises(NoEngineError):
            await loader.ensure_resident(version("c"), either, deadline=1000)
    await bench.hear(loader)
    assert loader.catalog.serving_statuses == {}


async def fail(bench: LoaderHarness, loader: Loader, times: int) -> None:
    for _ in range(times):
        with pytest.raises(LoadFailedError):
            await loader.ensure_resident(version("a"), either, deadline=1e6)
        await bench.hear(loader)
        bench.now += MAX_BACKOFF + 1


async def test_after_some_failed_loads_it_counts_as_failed_for_every_worker(bench: LoaderHarness):
    loader, other = bench.loader("w1"), bench.loader("w2")
    bench.control.error = EngineError("rank of fl-a in /x/a is wrong", 500)
    await fail(bench, loader, SURE - 1)
    assert loader.catalog.serving_statuses == {}
    since = bench.now
    await fail(bench, loader, 1)
    await bench.hear(other)
    serving_status = other.catalog.serving_statuses["fl-a"]
    assert (serving_status.state, serving_status.code, serving_status.version) == (
        "failed",
        "load_failed",
        "t/a@v1",
    )
    assert (serving_status.attempts, serving_status.retry, serving_status.engine) == (
        SURE,
        int((since + 60) * 1e6),
        "e1",
    )
    loads = len(bench.control.loads)
    for _ in range(3):
        with pytest.raises(LoadFailedError, match="rank of t/a@v1 in its files is wrong"):
            await other.ensure_resident(version("a"), either, deadline=1e6)
        bench.now += 1000
    assert len(bench.control.loads) == loads
    (note,) = [entry.note for entry in await bench.store.audit()]
    assert (note.actor, note.action, note.subject, note.version) == ("loader", "version.fail", "t/a", "v1")


async def test_an_engine_that_is_away_never_makes_a_version_failed(bench: LoaderHarness):
    loader, bench.control.error = bench.loader("w1"), EngineUnreachableError("gone")
    for _ in range(SURE + 1):
        with pytest.raises(NoEngineError):
            await loader.ensure_resident(version("a"), either, deadline=1e6)
        bench.now += MAX_BACKOFF + 1
    await bench.hear(loader)
    assert loader.catalog.serving_statuses == {}


async def test_without_redis_a_failed_load_is_still_told_as_one(
    bench: LoaderHarness, monkeypatch: pytest.MonkeyPatch
):
    loader, bench.control.error = bench.loader("w1"), EngineError("no", 500)
    await fail(bench, loader, SURE - 1)

    async def away(*_: object, **__: object) -> int:
        raise StoreUnavailableError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "commit", away)
        await fail(bench, loader, 1)
    assert loader.catalog.serving_statuses == {}
    await fail(bench, loader, 1)
    assert loader.catalog.serving_statuses["fl-a"].attempts == SURE + 1


async def test_no_load_is_where_the_owner_forbids_it(bench: LoaderHarness):
    loader = bench.loader("w1")
    loader.catalog.engines = {"e1": E1, "e2": replace(E2, region="eu")}
    loader.requires = {"t": {"region": "eu"}}.__getitem__

    def choose(failed: Collection[str]) -> Engine | None:
        return next((e for e in loader.catalog.engines.values() if e.name not in failed), None)

    assert await loader.ensure_resident(version("a"), choose, deadline=30) == "e2"
    with pytest.raises(NoEngineError):
        await loader.ensure_resident(version("b"), only(E1), deadline=30)
    assert bench.control.loads == [("e2", "fl-a")]


async def test_not_even_what_was_there_before_is_loaded_again_where_the_owner_forbids_it(
    bench: LoaderHarness,
):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    loader.requires = {"t": {"region": "eu"}}.__getitem__
    with pytest.raises(NoEngineError):
        await loader.ensure_resident(version("a"), only(E1), deadline=30, reload_on="e1")
    assert len(bench.control.loads) == 1


async def test_where_the_owner_forbids_it_by_now_it_does_not_count_as_resident(bench: LoaderHarness):
    loader = bench.loader("w1")
    loader.catalog.engines = {"e1": E1, "e2": replace(E2, region="eu")}
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    loader.requires = {"t": {"region": "eu"}}.__getitem__
    assert await loader.ensure_resident(version("a"), only(loader.catalog.engines["e2"]), deadline=30) == "e2"
    assert bench.control.loads == [("e1", "fl-a"), ("e2", "fl-a")]


# -- two tiers and replicas

C1 = replace(E1, cpu_slots=2)
C2 = replace(E2, cpu_slots=2)


async def test_cached_version_returns_without_a_load_or_verification(bench: LoaderHarness):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(C1), deadline=30)
    bench.now += 5
    await loader.ensure_resident(version("b"), only(C1), deadline=30)
    assert bench.control.unloads == []
    await bench.hear(loader)
    assert loader.residency.cached("fl-a") == ["e1"]
    bench.now += 5
    verifier = verified(loader)
    assert await loader.ensure_resident(version("a"), only(C1), deadline=30) == "e1"
    assert bench.control.loads == [("e1", "fl-a"), ("e1", "fl-b")]
    assert (bench.control.unloads, verifier.asked) == ([], [])
    await bench.hear(loader)
    assert loader.residency.slots("e1") == {"fl-a": SlotState.RESIDENT}
    assert await bench.store.leases("e1") == {"fl-a": 1}, "protected until its requests are reported"


async def test_what_no_longer_fits_the_cpu_memory_is_unloaded(bench: LoaderHarness):
    loader = bench.loader("w1")
    for name in ("a", "b", "c"):
        await loader.ensure_resident(version(name), only(C1), deadline=30)
        bench.now += 5
    assert bench.control.unloads == [("e1", "fl-a")]
    await loader.ensure_resident(version("b"), only(E1), deadline=30)  # the engine has less memory now
    assert bench.control.unloads == [("e1", "fl-a"), ("e1", "fl-c")]


async def test_replica_opens_beside_a_holder_with_one_load(bench: LoaderHarness):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    opened = await asyncio.gather(
        *(loader.open_replica(version("a"), E2, deadline=30) for _ in range(5)),
        bench.loader("w2").open_replica(version("a"), E2, deadline=30),
    )
    assert opened == [True] * 6
    assert bench.control.loads == [("e1", "fl-a"), ("e2", "fl-a")]
    await bench.hear(loader)
    assert loader.residency.holders("fl-a") == ["e1", "e2"]


async def test_replica_is_activated_where_it_is_cached(bench: LoaderHarness):
    loader = bench.loader("w1")
    for name in ("a", "b"):
        await loader.ensure_resident(version(name), only(C2), deadline=30)
        bench.now += 5
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    loads = list(bench.control.loads)
    assert await loader.open_replica(version("a"), C2, deadline=30)
    assert bench.control.loads == loads


async def test_no_replica_where_there_is_no_slot_or_another_is_being_opened(bench: LoaderHarness):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    await loader.ensure_resident(version("b"), only(E2), deadline=30)  # under its grace: not to be evicted
    assert not await loader.open_replica(version("a"), E2, deadline=30)
    e3 = replace(E2, name="e3", url="http://e3")
    await bench.store.claim("fl-a", "e3", slots=1, owner="other", ttl_ms=60_000, replica=True)
    bench.now += 5
    assert not await loader.open_replica(version("a"), E2, deadline=30), "one at a time"
    assert not await loader.open_replica(version("a"), e3, deadline=0), "a deadline that has passed"


async def test_no_replica_beyond_the_maximum_unless_an_engine_is_drained(bench: LoaderHarness):
    loader = bench.loader("w1")
    loader.catalog.adapters["t/a"] = Adapter("t/a", live=1, max_replicas=1)
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    assert not await loader.open_replica(version("a"), E2, deadline=30)
    await bench.hear(loader)
    loader.catalog.adapters["t/a"] = Adapter("t/a", live=1, max_replicas=1)
    loader.catalog.engines["e1"] = replace(E1, state="draining", drain=Drain(until=10**15))
    assert await loader.open_replica(version("a"), E2, deadline=30)


async def test_replica_that_one_engine_refuses_leaves_the_version_served(bench: LoaderHarness):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    bench.control.error = EngineError("no memory", 500)
    for _ in range(SURE + 1):
        assert not await loader.open_replica(version("a"), E2, deadline=bench.now + 30)
        loads = list(bench.control.loads)
        assert not await loader.open_replica(version("a"), E2, deadline=bench.now + 30)
        assert bench.control.loads == loads, "not asked again at once"
        bench.now += MAX_BACKOFF
        await bench.hear(loader)
        assert loader.catalog.serving_statuses == {}
    assert await loader.ensure_resident(version("a"), only(E1), deadline=bench.now + 30) == "e1"
    bench.control.error = None
    assert await loader.open_replica(version("a"), E2, deadline=bench.now + 30)


async def test_an_engine_on_trial_that_does_not_load_what_others_do_is_suspect(bench: LoaderHarness):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    bench.control.error = EngineError("no memory", 500)
    tried = replace(E2, trial=Trial(5, Guard("rollback"), since=1))
    for _ in range(SURE):
        assert loader.catalog.serving_statuses == {}
        assert not await loader.open_replica(version("a"), tried, deadline=bench.now + 30)
        bench.now += MAX_BACKOFF
        await bench.hear(loader)
    [status] = loader.catalog.serving_statuses.values()
    assert (status.engine, status.version) == ("e2", "")
    assert status.reason.startswith("it does not load what others do: t/a@v1 could not be loaded: no memory")


async def test_no_replica_of_a_quarantined_version_nor_on_a_suspect_engine(bench: LoaderHarness):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    verified(loader).suspects = {"e2"}
    assert not await loader.open_replica(version("a"), E2, deadline=30)
    await loader.serving_statuses.quarantine(version("a"), "unlike_itself", "it is wrong", "e1", {})
    await bench.hear(loader)
    verified(loader)
    assert not await loader.open_replica(version("a"), E2, deadline=30)
    assert bench.control.loads == [("e1", "fl-a")]
