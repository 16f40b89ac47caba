"""What the leader repairs, step by step: the store's twin, engines that list what they hold, no sleeping."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from adapters.catalog import Catalog
from adapters.engine_control import Listing
from adapters.errors import (
    EngineError,
    EngineUnreachableError,
    FencedError,
    StoreUnavailableError,
)
from adapters.loader import Loader
from adapters.memory_store import MemoryStore
from adapters.model import BaseModel, Engine, Fingerprint, SlotState, Verdict, Version, dump
from adapters.reconciler import ROLE, Reconciler
from adapters.residency import Residency
from adapters.retrial import Retrial
from adapters.stopped import StoppedEngines
from adapters.store import Change, ClaimResult, Fence

E1 = Engine("e1", "http://e1", "base", "h100", slots=3, max_rank=8)
LOST, RESIDENT, LOADING = SlotState.LOST, SlotState.RESIDENT, SlotState.LOADING


def version(name: str, **fields) -> Version:
    made = Version(f"t/{name}", 1, "sha256:0", f"fl-{name}", f"/x/{name}", "base", 8, 1, "/src", 0)
    return replace(made, **fields)


@dataclass
class Engines:
    """One process for each engine, which may be away; `on_load` may raise."""

    held: dict[str, set[str] | None] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)

    async def load(self, engine: Engine, wanted: Version) -> None:
        self.loads.append(wanted.engine_name)
        if wanted.engine_name in self.errors:
            raise self.errors[wanted.engine_name]
        self._names(engine).add(wanted.engine_name)

    async def unload(self, engine: Engine, engine_name: str) -> None:
        self.unloads.append(engine_name)
        self._names(engine).discard(engine_name)

    async def serving(self, engine: Engine, *, timeout: float | None = None) -> Listing:
        return Listing({"base": "/base"}, frozenset(self._names(engine)), None)

    def _names(self, engine: Engine) -> set[str]:
        names = self.held.setdefault(engine.name, set())
        if names is None:
            raise EngineUnreachableError("away")
        return names


class Quiet:
    def adapter_load(self, engine: str, result: str, seconds: float) -> None: ...

    def eviction(self, engine: str) -> None: ...


class Yard:
    """One worker, whose mirror follows at every `changed`, and the engines."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = MemoryStore(clock=lambda: int(self.now * 1000))
        self.catalog, self.residency = Catalog(), Residency(lambda: self.now)
        self.engines = Engines()

        async def changed(_: float) -> None:
            await self.sync()

        async def nothing() -> None: ...

        loader = Loader(
            store=self.store, catalog=self.catalog, residency=self.residency,
            control=self.engines, observer=Quiet(), owner="w", usable=lambda _: True,  # type: ignore[arg-type]
            changed=changed, before_claim=nothing, clock=lambda: self.now,
        )  # fmt: skip
        loader.verdicts.clock = lambda: int(self.now * 1e6)
        self.retrial = Retrial(
            self.store, self.catalog, self.residency, loader, now=lambda: int(self.now * 1e6)
        )

        async def dig(_: Fence) -> None: ...

        self.reconciler = Reconciler(
            store=self.store, catalog=self.catalog, residency=self.residency,
            control=self.engines, loader=loader, owner="w", interval=0.01, probe_timeout=1,  # type: ignore[arg-type]
            reload_interval=0, digger=SimpleNamespace(dig=dig), retrial=self.retrial,  # type: ignore[arg-type]
            stopped=StoppedEngines(self.store, self.catalog, 1.0, now=lambda: int(self.now * 1e6)),
        )  # fmt: skip
        self.strays: frozenset[str] = frozenset()
        self.fence = Fence(ROLE, 0)

    async def start(self) -> None:
        self.fence = Fence(ROLE, await self.store.lead(ROLE, "w", 5000))
        await self.put(Change("engine", "e1", dump(E1)))

    async def sync(self) -> None:
        documents = (await self.store.snapshot()).documents
        self.catalog.load(documents)
        self.residency.load(documents)

    async def put(self, *changes: Change) -> None:
        await self.store.commit(changes)
        await self.sync()

    async def resident(self, *names: str, slots: int = 3) -> None:
        """Registered, loaded and used, the last one most recently."""
        for name in names:
            made = version(name)
            await self.put(Change("version", made.id, dump(made)))
            claim = await self.store.claim(f"fl-{name}", "e1", slots=slots, owner="w", ttl_ms=9999)
            assert claim.result is ClaimResult.CLAIMED
            await self.store.confirm(f"fl-{name}", "e1", owner="w", grace_ms=0)
            self.engines.held.setdefault("e1", set()).add(f"fl-{name}")
            self.now += 1
        await self.sync()

    async def repair(self) -> None:
        engine = self.catalog.engines["e1"]
        self.strays = await self.reconciler._repair(engine, self.strays, self.fence)
        await self.sync()

    def slots(self) -> dict[str, SlotState]:
        return self.residency.slots("e1")


@pytest.fixture
async def yard() -> Yard:
    yard = Yard()
    await yard.start()
    return yard


async def test_what_is_as_it_should_be_is_left_alone(yard):
    await yard.resident("a", "b")
    before = await yard.store.snapshot()
    for _ in range(3):
        await yard.repair()
    assert await yard.store.snapshot() == before
    assert yard.engines.loads == yard.engines.unloads == []


async def test_a_restarted_engine_gets_its_adapters_back_hottest_first(yard):
    await yard.resident("a", "b", "c")
    yard.engines.held["e1"] = set()
    await yard.repair()
    assert yard.engines.loads == ["fl-c", "fl-b", "fl-a"]
    assert yard.slots() == {"fl-a": RESIDENT, "fl-b": RESIDENT, "fl-c": RESIDENT}


async def test_what_is_missing_is_lost_before_anything_is_loaded(yard):
    await yard.resident("a", "b")
    yard.engines.held["e1"] = set()
    yard.engines.errors = {"fl-b": EngineUnreachableError("gone again")}
    await yard.repair()
    assert yard.engines.loads == ["fl-b"], "the rest waits until the engine is back"
    assert yard.slots() == {"fl-a": LOST}
    assert yard.residency.holders("fl-a") == []
    yard.engines.errors.clear()
    await yard.repair()
    assert yard.slots() == {"fl-a": RESIDENT}


async def test_an_announced_epoch_is_repaired_though_the_list_looks_well(yard):
    await yard.resident("a", "b")
    await yard.store.lose("e1")
    await yard.sync()
    await yard.repair()
    assert set(yard.slots().values()) == {RESIDENT}


async def test_an_engine_that_does_not_answer_keeps_everything(yard):
    await yard.resident("a")
    yard.engines.held["e1"] = None
    before = await yard.store.snapshot()
    await yard.repair()
    assert await yard.store.snapshot() == before


async def test_what_is_being_loaded_is_neither_missing_nor_a_stray(yard):
    await yard.store.claim("fl-x", "e1", slots=3, owner="other", ttl_ms=60_000)
    await yard.sync()
    await yard.repair()
    yard.engines.held["e1"] = {"fl-x"}
    for _ in range(3):
        await yard.repair()
    assert yard.slots() == {"fl-x": LOADING}
    assert yard.engines.unloads == []


async def test_own_strays_go_when_seen_twice_and_strangers_stay(yard):
    await yard.resident("a")
    yard.engines.held["e1"] |= {"fl-stray", "by-hand", "flown-in"}
    await yard.repair()
    assert yard.engines.unloads == []
    await yard.repair()
    await yard.repair()
    assert yard.engines.unloads == ["fl-stray"]
    assert yard.engines.held["e1"] == {"fl-a", "by-hand", "flown-in"}


async def test_a_stray_that_was_not_seen_in_between_is_new(yard):
    yard.engines.held["e1"] = {"fl-stray"}
    await yard.repair()
    yard.engines.held["e1"] = None
    await yard.repair()
    yard.engines.held["e1"] = {"fl-stray"}
    await yard.repair()
    assert yard.engines.unloads == []


async def test_a_stray_that_the_store_knows_is_none_though_the_mirror_is_behind(yard):
    yard.engines.held["e1"] = {"fl-late"}
    await yard.repair()
    await yard.store.claim("fl-late", "e1", slots=3, owner="other", ttl_ms=60_000)
    yard.strays = await yard.reconciler._repair(yard.catalog.engines["e1"], yard.strays, yard.fence)
    assert yard.engines.unloads == []


@pytest.mark.parametrize(
    "change",
    [
        Change("version", "t/a@v1", None),
        Change("version", "t/a@v1", dump(version("a", retired=1))),
        Change("engine", "e1", dump(replace(E1, max_rank=4))),
        Change("verdict", "fl-a", dump(Verdict("failed", "t/a@v1", "load_failed", "no", "e1", 0))),
    ],
)
async def test_what_may_not_be_there_any_more_gives_its_slot_back(yard, change):
    await yard.resident("a")
    await yard.put(change)
    yard.engines.held["e1"] = set()
    await yard.repair()
    assert yard.slots() == {}
    assert yard.engines.loads == []


@pytest.mark.parametrize("change", [None, version("a", retired=1)])
async def test_what_was_removed_while_the_engine_could_not_be_told_is_taken_off_it(yard, change):
    await yard.resident("a", "b")
    await yard.put(Change("version", "t/a@v1", change and dump(change)))
    for _ in range(3):
        await yard.repair()
    assert yard.slots() == {"fl-b": RESIDENT}
    assert yard.engines.unloads == ["fl-a"]


async def test_an_engine_that_came_back_smaller_gets_its_pinned_and_its_hottest(yard):
    await yard.resident("a", "b", "c")
    await yard.put(Change("pin", "fl-a", "{}"), Change("engine", "e1", dump(replace(E1, slots=2))))
    yard.engines.held["e1"] = set()
    await yard.repair()
    assert yard.engines.loads == ["fl-c", "fl-a"]
    assert set(yard.slots()) == {"fl-a", "fl-c"}


async def test_a_draining_engine_is_not_filled_again(yard):
    await yard.resident("a")
    await yard.put(Change("engine", "e1", dump(replace(E1, state="draining"))))
    yard.engines.held["e1"] = set()
    await yard.repair()
    assert yard.slots() == {"fl-a": LOST}
    assert yard.engines.loads == []


async def test_a_refused_reload_holds_up_no_other(yard):
    await yard.resident("a", "b")
    yard.engines.held["e1"] = set()
    yard.engines.errors = {"fl-b": EngineError("bad weights", 500)}
    await yard.repair()
    assert yard.engines.loads == ["fl-b", "fl-a"]
    assert yard.slots() == {"fl-a": RESIDENT}


async def test_a_request_that_was_quicker_is_not_undone(yard):
    await yard.resident("a", "b")
    yard.engines.held["e1"] = set()
    load = yard.engines.load

    async def and_somebody_else_loads_a(engine, wanted):
        await load(engine, wanted)
        await yard.store.claim("fl-a", "e1", slots=3, owner="other", ttl_ms=9999)
        await yard.store.confirm("fl-a", "e1", owner="other", grace_ms=0)
        yard.engines.held["e1"].add("fl-a")
        await yard.sync()

    yard.engines.load = and_somebody_else_loads_a
    await yard.repair()
    assert yard.engines.loads == ["fl-b"]


async def test_placements_on_engines_that_are_no_more_are_swept(yard):
    await yard.resident("a")
    await yard.put(
        Change("engine", "e1", None),
        Change("verdict", "e1", dump(Verdict("failed", "", "engine_suspect", "odd", "e1", 0))),
    )
    await yard.reconciler._sweep(yard.fence)
    await yard.sync()
    assert yard.slots() == {}
    assert yard.catalog.verdicts == {}


async def test_what_was_found_out_about_what_is_no_more_goes(yard):
    await yard.resident("a")
    print_ = dump(Fingerprint("1", "", (), "e1", "h100", 0))
    wrong = dump(Verdict("quarantined", "t/b@v1", "unlike_itself", "odd", "e1", 0))
    await yard.put(
        Change("base", "base", dump(BaseModel("base"))),
        *(Change("fingerprint", name, print_) for name in ("fl-a", "fl-gone", "base", "gone-base")),
        *(Change("verdict", name, wrong) for name in ("fl-a", "fl-gone", "e1")),
    )
    await yard.reconciler._sweep(yard.fence)
    await yard.sync()
    assert yard.catalog.fingerprints.keys() == {"fl-a", "base"}
    assert yard.catalog.verdicts.keys() == {"fl-a", "e1"}


# -- leadership


async def depose(yard: Yard) -> None:
    await yard.store.resign(ROLE, "w")
    assert await yard.store.lead(ROLE, "other", 60_000)


async def test_one_who_leads_no_longer_changes_nothing(yard):
    await yard.resident("a")
    yard.engines.held["e1"] = {"fl-stray"}
    yard.strays = frozenset({"fl-stray"})
    await depose(yard)
    before = await yard.store.snapshot()
    with pytest.raises(FencedError):
        await yard.repair()
    await yard.put(Change("engine", "e1", None))
    with pytest.raises(FencedError):
        await yard.reconciler._sweep(yard.fence)
    after = await yard.store.snapshot()
    assert after.documents["placement"] == before.documents["placement"]
    assert yard.engines.loads == yard.engines.unloads == []


async def test_a_leader_deposed_between_two_loads_begins_no_other(yard):
    await yard.resident("a", "b", "c")
    yard.engines.held["e1"] = set()
    load = yard.engines.load

    async def load_and_be_deposed(engine, wanted):
        await load(engine, wanted)
        await depose(yard)

    yard.engines.load = load_and_be_deposed
    with pytest.raises(FencedError):
        await yard.repair()
    assert yard.engines.loads == ["fl-c"]


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_it_runs_while_it_leads_and_begins_again_when_it_leads_again(yard):
    await yard.store.resign(ROLE, "w")
    yard.engines.held["e1"] = {"fl-x"}
    running = asyncio.create_task(yard.reconciler.run())
    await until(lambda: yard.engines.unloads == ["fl-x"])
    await depose(yard)
    await until(lambda: not yard.reconciler._work)
    yard.engines.held["e1"] = {"fl-y"}
    await asyncio.sleep(0.1)
    assert yard.engines.unloads == ["fl-x"]
    await yard.store.resign(ROLE, "other")
    await until(lambda: yard.engines.unloads == ["fl-x", "fl-y"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await yard.store.lead(ROLE, "other", 1), "it resigned"


async def test_it_repairs_nothing_by_an_old_picture(yard):
    yard.reconciler.current = lambda: False
    await yard.store.resign(ROLE, "w")
    yard.engines.held["e1"] = {"fl-x"}
    running = asyncio.create_task(yard.reconciler.run())
    await until(lambda: "engine e1" in yard.reconciler._work)
    await asyncio.sleep(0.1)
    assert yard.engines.unloads == []
    yard.reconciler.current = lambda: True
    await until(lambda: yard.engines.unloads == ["fl-x"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_it_survives_a_store_that_is_away_and_a_defect(yard, caplog):
    await yard.store.resign(ROLE, "w")
    running = asyncio.create_task(yard.reconciler.run())
    await until(lambda: "engine e1" in yard.reconciler._work)
    yard.store.away = True
    await asyncio.sleep(0.05)
    yard.store.away = False
    serving, yard.engines.serving = yard.engines.serving, None
    await until(lambda: "stumbled" in caplog.text)
    yard.engines.serving = serving
    yard.engines.held["e1"] = {"fl-x"}
    await until(lambda: yard.engines.unloads == ["fl-x"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# -- versions that could not be loaded


async def failed(yard: Yard, *, retry: float, state="failed") -> None:
    made = version("a")
    verdict = Verdict(state, made.id, "load_failed", "no", "e1", 0, 3, int(retry * 1e6))
    await yard.put(Change("version", made.id, dump(made)), Change("verdict", "fl-a", dump(verdict)))


async def test_a_failed_version_is_tried_again_when_due_and_recovers(yard):
    await failed(yard, retry=60)
    await yard.retrial.retry_due(yard.fence)
    assert yard.engines.loads == []
    yard.now = 61
    await yard.retrial.retry_due(yard.fence)
    await yard.sync()
    assert yard.engines.loads == ["fl-a"]
    assert yard.catalog.verdicts == {}
    assert [e.note.action for e in await yard.store.audit()] == ["version.recover"]


async def test_a_version_that_fails_again_waits_twice_as_long(yard):
    await failed(yard, retry=60)
    yard.engines.errors = {"fl-a": EngineError("bad weights", 500)}
    pauses = []
    for _ in range(6):
        due = yard.catalog.verdicts["fl-a"].retry / 1e6
        yard.now = due + 0.001
        await yard.retrial.retry_due(yard.fence)
        await yard.sync()
        pauses.append(round(yard.catalog.verdicts["fl-a"].retry / 1e6 - due))
    assert pauses == [120, 240, 480, 600, 600, 600]
    assert yard.catalog.verdicts["fl-a"].attempts == 9
    assert len(yard.engines.loads) == 6


async def test_a_quarantined_version_is_never_tried_by_itself(yard):
    await failed(yard, retry=1, state="quarantined")
    yard.now = 100
    await yard.retrial.retry_due(yard.fence)
    assert yard.engines.loads == []


async def test_a_trial_without_an_engine_is_put_off_and_counts_for_nothing(yard):
    await failed(yard, retry=1)
    await yard.put(Change("engine", "e1", dump(replace(E1, state="cordoned"))))
    yard.now = 100
    for _ in range(5):
        await yard.retrial.retry_due(yard.fence)
    await yard.sync()
    assert yard.catalog.verdicts["fl-a"].attempts == 3
    await yard.put(Change("engine", "e1", dump(E1)))
    await yard.retrial.retry_due(yard.fence)
    assert yard.engines.loads == []
    yard.now += 11
    await yard.retrial.retry_due(yard.fence)
    assert yard.engines.loads == ["fl-a"]


async def test_a_trial_under_a_stale_fence_does_not_begin(yard):
    await failed(yard, retry=1)
    await depose(yard)
    yard.now = 100
    with pytest.raises(FencedError):
        await yard.retrial.retry_due(yard.fence)
    assert yard.engines.loads == []


async def test_a_trial_while_the_store_is_away_says_so(yard):
    await failed(yard, retry=1)
    yard.now = 100
    yard.store.away = True
    with pytest.raises(StoreUnavailableError):
        await yard.retrial.retry_due(yard.fence)
