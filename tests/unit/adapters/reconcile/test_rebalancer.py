"""What the leader does for operators' wishes: the store's double, engines that remember what they are asked."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from adapters.drivers.driver import Listing
from adapters.errors import EngineUnreachableError, FencedError
from adapters.model import Adapter, Engine, ServingStatus, SlotState, Version, dump
from adapters.placement.loader import Loader
from adapters.placement.residency import Residency
from adapters.reconcile.rebalancer import EngineStatus, Rebalancer
from adapters.registry.catalog import Catalog
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.placement import Touch
from adapters.store.protocol.registry import Change
from tests.doubles.memory_store import MemoryStore

RESIDENT = SlotState.RESIDENT


def engine(n: int, **fields) -> Engine:
    return replace(
        Engine(f"e{n}", f"http://h{n}:8000", "base", "h100", slots=2, max_rank=8, cpu_slots=2), **fields
    )


def version(name: str) -> Version:
    return Version(f"t/{name}", 1, "sha256:0", f"fl-{name}", f"/x/{name}", "base", 8, 1, "/src", 0)


@dataclass
class Engines:
    loads: list[tuple[str, str]] = field(default_factory=list)
    unloads: list[tuple[str, str]] = field(default_factory=list)
    away: set[str] = field(default_factory=set)
    held: dict[str, set[str]] = field(default_factory=dict)

    async def load(self, engine: Engine, wanted: Version) -> None:
        self.loads.append((engine.name, wanted.engine_name))
        self.held.setdefault(engine.name, set()).add(wanted.engine_name)

    async def unload(self, engine: Engine, name: str) -> None:
        if engine.name in self.away:
            raise EngineUnreachableError("away")
        self.unloads.append((engine.name, name))

    async def serving(self, engine: Engine) -> Listing:
        return Listing({}, frozenset(self.held.get(engine.name, ())), None)


class Site:
    """A leader, on a clock of seconds, with three engines on three hosts."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = MemoryStore(clock=lambda: int(self.now * 1000))
        self.catalog, self.residency = Catalog(), Residency(lambda: self.now)
        self.engines = Engines()
        self.status: dict[str, EngineStatus] = {}
        self.moved: list[str] = []
        self.fence = Fence("reconciler", 0)
        observer = SimpleNamespace(
            adapter_load=lambda *_: None, eviction=lambda *_: None, placement_move=self.moved.append
        )

        async def changed(_: float) -> None:
            await self.sync()

        async def nothing() -> None: ...

        self.loader = Loader(
            store=self.store, catalog=self.catalog, residency=self.residency, control=self.engines,  # type: ignore[arg-type]
            observer=observer, owner="w", usable=lambda _: True, changed=changed, before_claim=nothing,
            clock=lambda: self.now,
        )  # fmt: skip
        self.rebalancer = Rebalancer(
            self.store, self.catalog, self.residency, self.engines, self.loader,  # type: ignore[arg-type]
            lambda e: self.status.get(e.name, EngineStatus()), observer, interval=2.0,
            now=lambda: 5, clock=lambda: self.now,
        )  # fmt: skip

    async def sync(self) -> None:
        documents = (await self.store.snapshot()).documents
        self.catalog.load(documents)
        self.residency.load(documents)

    async def put(self, *changes: Change) -> None:
        await self.store.commit(changes)
        await self.sync()

    async def adapter(self, name: str, *, on: tuple[str, ...] = (), **fields) -> None:
        made = version(name)
        await self.put(
            Change("version", made.id, dump(made)),
            Change("adapter", f"t/{name}", dump(Adapter(f"t/{name}", 1, latest=1, **fields))),
        )
        for where in on:
            await self.store.claim(
                f"fl-{name}", where, slots=2, cpu_slots=2, owner="w", ttl_ms=9999, replica=True
            )
            await self.store.confirm(f"fl-{name}", where, owner="w", grace_ms=0)
        await self.sync()

    async def call(self, name: str, **engines: int) -> None:
        """So many requests of a version in flight on each engine."""
        touches = [Touch(e, f"fl-{name}", 0, n) for e, n in engines.items()]
        await self.store.touch("w", touches, ttl_ms=60_000)

    async def tick(self, seconds: float = 2.0) -> None:
        """Plan, and carry out all moves."""
        async with asyncio.TaskGroup() as moving:
            await self.rebalancer.tick(self.fence, moving)
        await self.sync()
        self.now += seconds

    def where(self, name: str) -> set[str]:
        return {e for e, state in self.residency.where(f"fl-{name}").items() if state is RESIDENT}


@pytest.fixture
async def site() -> Site:
    site = Site()
    token = await site.store.lead("reconciler", "w", 3_600_000)
    site.fence = Fence("reconciler", token)
    await site.put(*(Change("engine", f"e{n}", dump(engine(n))) for n in (1, 2, 3)))
    return site


async def test_nothing_is_moved_where_nothing_is_asked_for(site):
    await site.adapter("a", on=("e1",))
    for _ in range(3):
        await site.tick()
    assert (site.engines.loads, site.engines.unloads, site.moved) == ([], [], [])


async def test_demand_is_no_reason_to_move_anything(site):
    await site.adapter("a", on=("e1",))
    await site.adapter("b", on=("e1", "e2"))
    for calls in (96, 0):
        await site.call("a", e1=calls)
        for _ in range(3):
            await site.tick()
    assert (site.engines.loads, site.engines.unloads, site.moved) == ([], [], [])


async def test_surplus_replicas_go_but_none_in_use(site):
    await site.adapter("a", on=("e1", "e2"), max_replicas=1)
    await site.call("a", e1=1, e2=1)
    await site.tick()
    assert site.where("a") == {"e1", "e2"}
    await site.call("a", e1=1, e2=0)
    await site.tick()
    assert site.where("a") == {"e1"}
    assert site.moved == ["drop"]
    (record,) = [json.loads(text) for text in await site.store.moves()]
    assert (record["kind"], record["version"], record["moved_at"]) == ("drop", "t/a@v1", 5)


async def test_a_drop_looks_once_more_whether_the_version_is_in_use(site):
    await site.adapter("a", on=("e1",))
    await site.call("a", e1=1)
    assert not await site.rebalancer.drop(version("a"), engine(1), site.fence)
    assert site.where("a") == {"e1"}


async def test_what_cannot_be_unloaded_now_is_dropped_all_the_same(site):
    await site.adapter("a", on=("e1",))
    site.engines.away.add("e1")
    assert await site.rebalancer.drop(version("a"), engine(1), site.fence)
    await site.sync()
    assert site.where("a") == set()


async def test_who_has_lost_the_role_moves_nothing(site):
    await site.adapter("a", min_replicas=1)
    await site.store.resign("reconciler", "w")
    with pytest.raises(ExceptionGroup) as caught:
        await site.tick()
    assert caught.group_contains(FencedError)
    assert site.engines.loads == []


async def test_a_minimum_is_reached_on_different_hosts(site):
    await site.put(Change("engine", "e2", dump(engine(2, host="h1"))))
    await site.adapter("a", on=("e1",), min_replicas=2)
    await site.tick()
    assert site.where("a") == {"e1", "e3"}


async def test_a_minimum_takes_the_slot_of_what_rests_and_needs_none(site):
    await site.put(Change("engine", "e2", None), Change("engine", "e3", None))
    await site.adapter("a", on=("e1",), min_replicas=1)
    await site.adapter("b", on=("e1",))
    site.now += 1
    await site.call("a", e1=1)
    await site.call("a", e1=0)
    site.now += 90
    await site.adapter("c", min_replicas=1)
    await site.tick()
    assert (site.where("a"), site.where("b"), site.where("c")) == ({"e1"}, set(), {"e1"})


async def test_what_the_owner_forbids_there_goes_and_comes_to_where_it_may_be(site):
    await site.put(Change("engine", "e3", dump(engine(3, region="eu"))))
    await site.adapter("a", on=("e1",), min_replicas=1)
    site.loader.requires = lambda tenant: {"region": "eu"}
    await site.tick()
    await site.tick()
    assert site.where("a") == {"e3"}
    assert ("e1", "fl-a") in site.engines.unloads
    assert "requires other labels" in json.loads((await site.store.moves())[-1])["why"]


async def test_what_is_pinned_is_loaded_elsewhere_when_its_engine_is_gone(site):
    await site.adapter("a", on=("e1",), pinned=True)
    await site.put(Change("pin", "fl-a", "{}"))
    await site.tick()
    assert site.moved == []
    site.status["e1"] = EngineStatus(serves=False, open=False)
    await site.tick()
    assert site.moved == ["prefetch"]
    assert len(site.where("a") - {"e1"}) == 1


@pytest.mark.parametrize("why", ["cordoned", "slow", "busy"])
async def test_nothing_is_loaded_on_engines_that_take_no_loads(site, why):
    await site.adapter("a", on=("e1",), min_replicas=2)
    for name in ("e2", "e3"):
        if why == "cordoned":
            changed = replace(site.catalog.engines[name], state="cordoned")
            await site.put(Change("engine", name, dump(changed)))
        elif why == "slow":
            site.status[name] = EngineStatus(open=False)
        else:
            site.rebalancer._busy.add(name)
    await site.tick()
    assert site.engines.loads == []


async def test_what_is_not_served_is_not_planned_for(site):
    await site.adapter("a", min_replicas=2)
    status = ServingStatus("quarantined", "t/a@v1", "answers_like_base", "x", "e1", 1)
    await site.put(Change("serving_status", "fl-a", dump(status)))
    await site.tick()
    assert site.engines.loads == []


async def test_loads_on_one_engine_are_paced(site):
    await site.put(Change("engine", "e2", None), Change("engine", "e3", None))
    for name in ("a", "b"):
        await site.adapter(name, min_replicas=1)
    site.status["e1"] = EngineStatus(load_ms=500)
    for _ in range(5):
        await site.tick(seconds=1.9)
    await site.tick(seconds=1.0)
    assert len(site.engines.loads) == 1
    await site.tick()
    assert len(site.engines.loads) == 2, "10 s later: 5 % of its time"
