"""ensure_resident, with the store's twin, a steered clock and an engine that does as it is told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from adapters.catalog import Catalog
from adapters.engine_control import Listing
from adapters.errors import (
    EngineError,
    EngineUnreachableError,
    LoadFailedError,
    NoEngineError,
    PlacementError,
)
from adapters.loader import CLAIM_MS, FIRST_BACKOFF, Loader
from adapters.memory_store import MemoryStore
from adapters.model import Engine, Version
from adapters.residency import Residency

E1 = Engine("e1", "http://e1", "base", "h100", slots=1, max_rank=8)
E2 = Engine("e2", "http://e2", "base", "h100", slots=1, max_rank=8)


def version(name: str) -> Version:
    return Version(f"t/{name}", 1, "sha256:0", f"fl-{name}", f"/x/{name}", "base", 8, 1, "/src", 0)


@dataclass
class FakeControl:
    """Records what is asked of engines; `on_load` may wait or raise."""

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
    def adapter_load(self, engine: str, result: str, seconds: float) -> None: ...

    def eviction(self, engine: str) -> None: ...


class Bench:
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

        async def nothing() -> None: ...

        return Loader(
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


@pytest.fixture
def bench() -> Bench:
    return Bench()


def only(engine: Engine):
    return lambda failed: None if engine.name in failed else engine


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_all_who_wait_share_one_load_and_leaving_stops_nothing(bench: Bench):
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


async def test_one_of_all_who_waited_answers_for_the_load(bench: Bench):
    loader, other = bench.loader("w1"), bench.loader("w2")
    for who in (loader, loader, other):
        await who.ensure_resident(version("a"), only(E1), deadline=30)
    await loader.ensure_resident(version("b"), only(E2), deadline=30)
    assert [loader.loads_since(version("a"), "e1") for _ in range(3)] == [1, 0, 0]
    assert loader.loads_since(version("a"), "e2") == 0
    assert loader.loads_since(version("b"), "e2") == 1
    assert other.loads_since(version("a"), "e1") == 0
    assert loader.loads_since(None, "e1") == 0


async def test_workers_wait_for_each_others_load(bench: Bench):
    first, second, bench.control.gate = bench.loader("w1"), bench.loader("w2"), asyncio.Event()
    one = asyncio.ensure_future(first.ensure_resident(version("a"), only(E1), deadline=30))
    await turns()
    two = asyncio.ensure_future(second.ensure_resident(version("a"), only(E2), deadline=30))
    await turns()
    bench.control.gate.set()
    assert await asyncio.gather(one, two) == ["e1", "e1"]
    assert len(bench.control.loads) == 1


async def test_the_load_of_a_dead_worker_is_taken_over(bench: Bench):
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


async def test_the_victim_is_unloaded_first(bench: Bench):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    bench.now += 5
    await loader.ensure_resident(version("b"), only(E1), deadline=30)
    assert bench.control.unloads == [("e1", "fl-a")]
    assert bench.control.holding["e1"] == {"fl-b"}


async def test_an_engine_that_is_away_is_left_for_another(bench: Bench):
    loader, bench.control.error = bench.loader("w1"), EngineUnreachableError("gone")

    def choose(failed):
        if "e1" not in failed:
            return E1
        bench.control.error = None
        return E2

    assert await loader.ensure_resident(version("a"), choose, deadline=30) == "e2"
    assert list(await bench.store.recency("e1")) == []  # the slot was given back


async def test_a_refused_load_is_told_at_once_and_tried_again_later(bench: Bench):
    loader, bench.control.error = bench.loader("w1"), EngineError("rank of fl-a in /x/a is wrong", 500)
    for _ in range(3):
        with pytest.raises(LoadFailedError, match=r"rank of t/a@v1 in its files is wrong"):
            await loader.ensure_resident(version("a"), only(E1), deadline=30)
    assert len(bench.control.loads) == 1
    bench.now += FIRST_BACKOFF + 0.1
    bench.control.error = None
    assert await loader.ensure_resident(version("a"), only(E1), deadline=30) == "e1"


async def test_a_200_is_not_believed(bench: Bench):
    loader, bench.control.lies = bench.loader("w1"), True
    with pytest.raises(LoadFailedError, match="does not list it"):
        await loader.ensure_resident(version("a"), only(E1), deadline=30)
    assert list(await bench.store.recency("e1")) == []


async def test_a_full_engine_is_waited_for_until_the_deadline(bench: Bench):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)  # under its grace: not to be evicted
    waiter = asyncio.ensure_future(loader.ensure_resident(version("b"), only(E1), deadline=0.5))
    await turns()
    bench.now += 0.6
    with pytest.raises(PlacementError):
        await waiter


async def test_nowhere_to_go_is_said_at_once(bench: Bench):
    with pytest.raises(NoEngineError):
        await bench.loader("w1").ensure_resident(version("a"), lambda _: None, deadline=30)


async def test_a_forgotten_version_is_loaded_again_where_it_was(bench: Bench):
    loader = bench.loader("w1")
    await loader.ensure_resident(version("a"), only(E1), deadline=30)
    bench.control.holding.clear()
    assert await loader.ensure_resident(version("a"), only(E2), deadline=30, reload_on="e1") == "e1"
    assert bench.control.loads == [("e1", "fl-a")] * 2
