"""What the leader repairs, step by step: the store's twin, engines that list what they hold, no sleeping."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from adapters.drivers.driver import Listing
from adapters.errors import (
    EngineError,
    EngineUnreachableError,
    FencedError,
    StoreUnavailableError,
)
from adapters.model import BaseModel, Engine, Fingerprint, ServingStatus, SlotState, Version, dump
from adapters.placement.loader import Loader
from adapters.placement.residency import Residency
from adapters.reconcile.evacuation import Evacuation
from adapters.reconcile.load_retries import LoadRetries
from adapters.reconcile.reconciler import QUIET_SECONDS, ROLE, Reconciler
from adapters.reconcile.stopped_engines import StoppedEngines
from adapters.registry.catalog import Catalog
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.placement import ClaimResult
from adapters.store.protocol.registry import Change
from tests.doubles.memory_store import MemoryStore
from tests.support.waiting import until

E1 = Engine("e1", "http://e1", "base", "h100", slots=3, max_rank=8, cpu_slots=4)
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
    tells: bool = True
    keeps: set[str] = field(default_factory=set)
    """Names that it refuses to unload."""

    async def load(self, engine: Engine, wanted: Version) -> None:
        self.loads.append(wanted.engine_name)
        if wanted.engine_name in self.errors:
            raise self.errors[wanted.engine_name]
        self._names(engine).add(wanted.engine_name)

    async def unload(self, engine: Engine, engine_name: str) -> bool:
        self.unloads.append(engine_name)
        if engine_name in self.keeps:
            return False
        self._names(engine).discard(engine_name)
        return True

    async def serving(self, engine: Engine, *, timeout: float | None = None) -> Listing:
        names = frozenset(self._names(engine))
        tells = self.tells and engine.driver in {"vllm", "sglang"}
        return Listing({"base": "/base"}, names if tells else None, None)

    def _names(self, engine: Engine) -> set[str]:
        names = self.held.setdefault(engine.name, set())
        if names is None:
            raise EngineUnreachableError("away")
        return names


class Quiet:
    def adapter_load(self, engine: Engine, version: Version, result: str, seconds: float) -> None: ...

    def eviction(self, engine: str) -> None: ...


class ReconcilerHarness:
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
        loader.serving_statuses.clock = lambda: int(self.now * 1e6)
        self.load_retries = LoadRetries(
            self.store, self.catalog, self.residency, loader, now=lambda: int(self.now * 1e6)
        )

        async def collect(_: Fence) -> None: ...

        self.reconciler = Reconciler(
            store=self.store, catalog=self.catalog, residency=self.residency,
            control=self.engines, loader=loader, owner="w", interval=0.01, probe_timeout=1,  # type: ignore[arg-type]
            reload_interval=0, collector=SimpleNamespace(collect=collect), load_retries=self.load_retries,  # type: ignore[arg-type]
            rebalancer=SimpleNamespace(interval=0),  # type: ignore[arg-type]
            stopped=StoppedEngines(self.store, self.catalog, 1.0, now=lambda: int(self.now * 1e6)),
            evacuation=Evacuation(
                self.store, self.catalog, self.residency, self.engines, loader, 0.0,  # type: ignore[arg-type]
                now=lambda: int(self.now * 1e6),
            ),
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

    async def resident(self, *names: str, slots: int = 3, cpu_slots: int = 0) -> None:
        """Registered, loaded and used, the last one most recently."""
        for name in names:
            made = version(name)
            await self.put(Change("version", made.id, dump(made)))
            claim = await self.store.claim(
                f"fl-{name}", "e1", slots=slots, cpu_slots=cpu_slots, owner="w", ttl_ms=9999
            )
            assert claim.result is ClaimResult.CLAIMED
            await self.store.confirm(f"fl-{name}", "e1", owner="w", grace_ms=0)
            self.engines.held.setdefault("e1", set()).add(f"fl-{name}")
            self.now += 1
        await self.sync()

    async def repair(self) -> None:
        engine = self.catalog.engines["e1"]
        self.strays = await self.reconciler.repair(engine, self.strays, self.fence)
        await self.sync()

    def slots(self) -> dict[str, SlotState]:
        return self.residency.slots("e1")


@pytest.fixture
async def harness() -> ReconcilerHarness:
    harness = ReconcilerHarness()
    await harness.start()
    return harness


async def test_a_restarted_engine_gets_its_adapters_back_hottest_first(harness):
    await harness.resident("a", "b", "c")
    harness.engines.held["e1"] = set()
    await harness.repair()
    assert harness.engines.loads == ["fl-c", "fl-b", "fl-a"]
    assert harness.slots() == {"fl-a": RESIDENT, "fl-b": RESIDENT, "fl-c": RESIDENT}


async def test_what_its_owner_forbids_there_by_now_is_not_loaded_again(harness):
    await harness.resident("a", "b")
    harness.engines.held["e1"] = set()
    harness.reconciler.loader.requires = lambda tenant: {"region": "eu"}
    await harness.repair()
    assert harness.engines.loads == []
    assert harness.slots() == {}


async def test_what_is_missing_is_lost_before_anything_is_loaded(harness):
    await harness.resident("a", "b")
    harness.engines.held["e1"] = set()
    harness.engines.errors = {"fl-b": EngineUnreachableError("gone again")}
    await harness.repair()
    assert harness.engines.loads == ["fl-b"], "the rest waits until the engine is back"
    assert harness.slots() == {"fl-a": LOST}
    assert harness.residency.holders("fl-a") == []
    harness.engines.errors.clear()
    await harness.repair()
    assert harness.slots() == {"fl-a": RESIDENT}


async def test_an_announced_epoch_is_repaired_though_the_list_looks_well(harness):
    await harness.resident("a", "b")
    await harness.store.mark_lost("e1")
    await harness.sync()
    await harness.repair()
    assert set(harness.slots().values()) == {RESIDENT}


async def test_an_engine_that_does_not_answer_keeps_everything(harness):
    await harness.resident("a")
    harness.engines.held["e1"] = None
    before = await harness.store.snapshot()
    await harness.repair()
    assert await harness.store.snapshot() == before


@pytest.mark.parametrize(
    ("driver", "kept"),
    [("trtllm", SlotState.RESIDENT), ("lorax", SlotState.RESIDENT), ("tgi", SlotState.LOST)],
)
async def test_only_where_the_base_model_answers_for_what_is_gone_an_outage_casts_doubt(
    harness, driver, kept
):
    await harness.resident("a")
    await harness.put(Change("engine", "e1", dump(replace(E1, driver=driver, holds=(version("a").id,)))))
    harness.engines.held["e1"] = None
    await harness.repair()
    assert harness.slots() == {"fl-a": kept}
    harness.engines.held["e1"] = set()
    await harness.repair()
    assert harness.slots() == {"fl-a": SlotState.RESIDENT}
    assert harness.engines.loads == (["fl-a"] if driver == "tgi" else [])


async def test_an_engine_that_does_not_tell_what_it_holds_is_believed(harness):
    await harness.resident("a", "b")
    harness.engines.tells = False
    harness.engines.held["e1"] = {"fl-stray"}
    await harness.repair()
    await harness.repair()
    assert set(harness.slots().values()) == {RESIDENT}
    assert not harness.engines.unloads


async def test_what_is_as_it_should_be_is_left_alone_cached_or_not(harness):
    await harness.resident("a", "b", "c", "d", cpu_slots=4)
    before = await harness.store.snapshot()
    for _ in range(3):
        await harness.repair()
    assert harness.residency.cached("fl-a") == ["e1"]
    assert await harness.store.snapshot() == before
    assert harness.engines.loads == harness.engines.unloads == []


async def test_cached_version_that_is_no_longer_listed_is_forgotten(harness):
    await harness.resident("a", "b", "c", "d", cpu_slots=4)
    harness.engines.held["e1"] = {"fl-b", "fl-c", "fl-d"}
    await harness.repair()
    assert harness.residency.where("fl-a") == {}
    assert set(harness.slots().values()) == {RESIDENT}
    assert harness.engines.loads == []


async def test_cached_versions_take_no_room_from_those_that_come_back(harness):
    await harness.resident("a", "b", "c", "d", cpu_slots=4)
    harness.engines.held["e1"] = {"fl-a"}
    await harness.repair()
    assert harness.engines.loads == ["fl-d", "fl-c", "fl-b"]
    assert harness.residency.cached("fl-a") == ["e1"]


async def test_removed_version_is_uncached_and_unloaded(harness):
    await harness.resident("a", "b", "c", "d", cpu_slots=4)
    await harness.put(Change("version", version("a").id, None))
    for _ in range(3):
        await harness.repair()
    assert harness.residency.where("fl-a") == {}
    assert harness.engines.unloads == ["fl-a"]


async def test_what_is_being_loaded_is_neither_missing_nor_a_stray(harness):
    await harness.store.claim("fl-x", "e1", slots=3, owner="other", ttl_ms=60_000)
    await harness.sync()
    await harness.repair()
    harness.engines.held["e1"] = {"fl-x"}
    for _ in range(3):
        await harness.repair()
    assert harness.slots() == {"fl-x": LOADING}
    assert harness.engines.unloads == []


async def test_own_strays_go_when_seen_twice_and_strangers_stay(harness):
    await harness.resident("a")
    harness.engines.held["e1"] |= {"fl-stray", "by-hand", "flown-in"}
    await harness.repair()
    assert harness.engines.unloads == []
    await harness.repair()
    await harness.repair()
    assert harness.engines.unloads == ["fl-stray"]
    assert harness.engines.held["e1"] == {"fl-a", "by-hand", "flown-in"}


async def test_a_name_that_an_engine_keeps_is_tried_once_in_each_process(harness):
    process = 1
    harness.reconciler.process = lambda _: process
    harness.engines.held["e1"], harness.engines.keeps = {"fl-gone"}, {"fl-gone"}
    for _ in range(5):
        await harness.repair()
    assert (harness.engines.unloads, harness.strays) == (["fl-gone"], frozenset())
    process = 2
    for _ in range(5):
        await harness.repair()
    assert harness.engines.unloads == ["fl-gone"] * 2


async def test_a_stray_that_was_not_seen_in_between_is_new(harness):
    harness.engines.held["e1"] = {"fl-stray"}
    await harness.repair()
    harness.engines.held["e1"] = None
    await harness.repair()
    harness.engines.held["e1"] = {"fl-stray"}
    await harness.repair()
    assert harness.engines.unloads == []


async def test_a_stray_that_the_store_knows_is_none_though_the_mirror_is_behind(harness):
    harness.engines.held["e1"] = {"fl-late"}
    await harness.repair()
    await harness.store.claim("fl-late", "e1", slots=3, owner="other", ttl_ms=60_000)
    harness.strays = await harness.reconciler.repair(
        harness.catalog.engines["e1"], harness.strays, harness.fence
    )
    assert harness.engines.unloads == []


@pytest.mark.parametrize(
    "change",
    [
        Change("version", "t/a@v1", None),
        Change("version", "t/a@v1", dump(version("a", retired=1))),
        Change("engine", "e1", dump(replace(E1, max_rank=4))),
        Change(
            "serving_status", "fl-a", dump(ServingStatus("failed", "t/a@v1", "load_failed", "no", "e1", 0))
        ),
    ],
)
async def test_what_may_not_be_there_any_more_gives_its_slot_back(harness, change):
    await harness.resident("a")
    await harness.put(change)
    harness.engines.held["e1"] = set()
    await harness.repair()
    assert harness.slots() == {}
    assert harness.engines.loads == []


@pytest.mark.parametrize("change", [None, version("a", retired=1)])
async def test_what_was_removed_while_the_engine_could_not_be_told_is_taken_off_it(harness, change):
    await harness.resident("a", "b")
    await harness.put(Change("version", "t/a@v1", change and dump(change)))
    for _ in range(3):
        await harness.repair()
    assert harness.slots() == {"fl-b": RESIDENT}
    assert harness.engines.unloads == ["fl-a"]


async def test_an_engine_that_came_back_smaller_gets_its_pinned_and_its_hottest(harness):
    await harness.resident("a", "b", "c")
    await harness.put(Change("pin", "fl-a", "{}"), Change("engine", "e1", dump(replace(E1, slots=2))))
    harness.engines.held["e1"] = set()
    await harness.repair()
    assert harness.engines.loads == ["fl-c", "fl-a"]
    assert set(harness.slots()) == {"fl-a", "fl-c"}


async def test_a_draining_engine_is_not_filled_again(harness):
    await harness.resident("a")
    await harness.put(Change("engine", "e1", dump(replace(E1, state="draining"))))
    harness.engines.held["e1"] = set()
    await harness.repair()
    assert harness.slots() == {"fl-a": LOST}
    assert harness.engines.loads == []


async def test_a_refused_reload_holds_up_no_other(harness):
    await harness.resident("a", "b")
    harness.engines.held["e1"] = set()
    harness.engines.errors = {"fl-b": EngineError("bad weights", 500)}
    await harness.repair()
    assert harness.engines.loads == ["fl-b", "fl-a"]
    assert harness.slots() == {"fl-a": RESIDENT}


async def test_a_request_that_was_quicker_is_not_undone(harness):
    await harness.resident("a", "b")
    harness.engines.held["e1"] = set()
    load = harness.engines.load

    async def and_somebody_else_loads_a(engine, wanted):
        await load(engine, wanted)
        await harness.store.claim("fl-a", "e1", slots=3, owner="other", ttl_ms=9999)
        await harness.store.confirm("fl-a", "e1", owner="other", grace_ms=0)
        harness.engines.held["e1"].add("fl-a")
        await harness.sync()

    harness.engines.load = and_somebody_else_loads_a
    await harness.repair()
    assert harness.engines.loads == ["fl-b"]


async def test_placements_on_engines_that_are_no_more_are_swept(harness):
    await harness.resident("a")
    await harness.put(
        Change("engine", "e1", None),
        Change("serving_status", "e1", dump(ServingStatus("failed", "", "engine_suspect", "odd", "e1", 0))),
    )
    await harness.reconciler.sweep(harness.fence)
    await harness.sync()
    assert harness.slots() == {}
    assert harness.catalog.serving_statuses == {}


async def test_what_was_found_out_about_what_is_no_more_goes(harness):
    await harness.resident("a")
    print_ = dump(Fingerprint("1", "", (), "e1", "h100", 0))
    wrong = dump(ServingStatus("quarantined", "t/b@v1", "unlike_itself", "odd", "e1", 0))
    await harness.put(
        Change("base", "base", dump(BaseModel("base"))),
        *(Change("fingerprint", name, print_) for name in ("fl-a", "fl-gone", "base", "gone-base")),
        *(Change("serving_status", name, wrong) for name in ("fl-a", "fl-gone", "e1")),
    )
    await harness.reconciler.sweep(harness.fence)
    await harness.sync()
    assert harness.catalog.fingerprints.keys() == {"fl-a", "base"}
    assert harness.catalog.serving_statuses.keys() == {"fl-a", "e1"}


# -- leadership


async def depose(harness: ReconcilerHarness) -> None:
    await harness.store.resign(ROLE, "w")
    assert await harness.store.lead(ROLE, "other", 60_000)


async def test_one_who_leads_no_longer_changes_nothing(harness):
    await harness.resident("a")
    harness.engines.held["e1"] = {"fl-stray"}
    harness.strays = frozenset({"fl-stray"})
    await depose(harness)
    before = await harness.store.snapshot()
    with pytest.raises(FencedError):
        await harness.repair()
    await harness.put(Change("engine", "e1", None))
    with pytest.raises(FencedError):
        await harness.reconciler.sweep(harness.fence)
    after = await harness.store.snapshot()
    assert after.documents["placement"] == before.documents["placement"]
    assert harness.engines.loads == harness.engines.unloads == []


async def test_a_leader_deposed_between_two_loads_begins_no_other(harness):
    await harness.resident("a", "b", "c")
    harness.engines.held["e1"] = set()
    load = harness.engines.load

    async def load_and_be_deposed(engine, wanted):
        await load(engine, wanted)
        await depose(harness)

    harness.engines.load = load_and_be_deposed
    with pytest.raises(FencedError):
        await harness.repair()
    assert harness.engines.loads == ["fl-c"]


async def test_it_runs_while_it_leads_and_begins_again_when_it_leads_again(harness):
    await harness.store.resign(ROLE, "w")
    harness.engines.held["e1"] = {"fl-x"}
    running = asyncio.create_task(harness.reconciler.job.run())
    await until(lambda: harness.engines.unloads == ["fl-x"])
    await depose(harness)
    await until(lambda: not harness.reconciler._work)
    harness.engines.held["e1"] = {"fl-y"}
    await asyncio.sleep(0.1)
    assert harness.engines.unloads == ["fl-x"]
    await harness.store.resign(ROLE, "other")
    await until(lambda: harness.engines.unloads == ["fl-x", "fl-y"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await harness.store.lead(ROLE, "other", 1), "it resigned"


async def test_it_repairs_nothing_by_an_old_picture(harness):
    harness.reconciler.current = lambda: False
    await harness.store.resign(ROLE, "w")
    harness.engines.held["e1"] = {"fl-x"}
    running = asyncio.create_task(harness.reconciler.job.run())
    await until(lambda: "engine e1" in harness.reconciler._work)
    await asyncio.sleep(0.1)
    assert harness.engines.unloads == []
    harness.reconciler.current = lambda: True
    await until(lambda: harness.engines.unloads == ["fl-x"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_engine_is_asked_again_when_its_process_may_be_another_or_time_has_passed(harness):
    await harness.store.resign(ROLE, "w")
    reconciler, process = harness.reconciler, [1]
    reconciler.process = lambda _: process[-1]

    def pass_time() -> None:
        harness.now += QUIET_SECONDS

    running = asyncio.create_task(reconciler.job.run())
    for number, change in enumerate((lambda: process.append(2), pass_time)):
        await until(lambda: "e1" in reconciler._settled)
        stray = f"fl-{number}"
        harness.engines.held["e1"] = {stray}
        await asyncio.sleep(0.05)
        assert stray not in harness.engines.unloads
        change()
        await until(lambda stray=stray: stray in harness.engines.unloads)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_it_survives_a_store_that_is_away_and_a_defect(harness, caplog):
    harness.reconciler.process = lambda _: object()  # may always be another
    await harness.store.resign(ROLE, "w")
    running = asyncio.create_task(harness.reconciler.job.run())
    await until(lambda: "engine e1" in harness.reconciler._work)
    harness.store.away = True
    await asyncio.sleep(0.05)
    harness.store.away = False
    serving, harness.engines.serving = harness.engines.serving, None
    await until(lambda: "Reconciler task engine e1 failed" in caplog.text)
    harness.engines.serving = serving
    harness.engines.held["e1"] = {"fl-x"}
    await until(lambda: harness.engines.unloads == ["fl-x"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# -- versions that could not be loaded


async def failed(harness: ReconcilerHarness, *, retry: float, state="failed") -> None:
    made = version("a")
    serving_status = ServingStatus(state, made.id, "load_failed", "no", "e1", 0, 3, int(retry * 1e6))
    await harness.put(
        Change("version", made.id, dump(made)), Change("serving_status", "fl-a", dump(serving_status))
    )


async def test_a_failed_version_is_tried_again_when_due_and_recovers(harness):
    await failed(harness, retry=60)
    await harness.load_retries.retry_due(harness.fence)
    assert harness.engines.loads == []
    harness.now = 61
    await harness.load_retries.retry_due(harness.fence)
    await harness.sync()
    assert harness.engines.loads == ["fl-a"]
    assert harness.catalog.serving_statuses == {}
    assert [e.note.action for e in await harness.store.audit()] == ["version.recover"]


async def test_a_version_that_fails_again_waits_twice_as_long(harness):
    await failed(harness, retry=60)
    harness.engines.errors = {"fl-a": EngineError("bad weights", 500)}
    pauses = []
    for _ in range(6):
        due = harness.catalog.serving_statuses["fl-a"].retry / 1e6
        harness.now = due + 0.001
        await harness.load_retries.retry_due(harness.fence)
        await harness.sync()
        pauses.append(round(harness.catalog.serving_statuses["fl-a"].retry / 1e6 - due))
    assert pauses == [120, 240, 480, 600, 600, 600]
    assert harness.catalog.serving_statuses["fl-a"].attempts == 9
    assert len(harness.engines.loads) == 6


async def test_a_quarantined_version_is_never_tried_by_itself(harness):
    await failed(harness, retry=1, state="quarantined")
    harness.now = 100
    await harness.load_retries.retry_due(harness.fence)
    assert harness.engines.loads == []


async def test_a_trial_without_an_engine_is_put_off_and_counts_for_nothing(harness):
    await failed(harness, retry=1)
    await harness.put(Change("engine", "e1", dump(replace(E1, state="cordoned"))))
    harness.now = 100
    for _ in range(5):
        await harness.load_retries.retry_due(harness.fence)
    await harness.sync()
    assert harness.catalog.serving_statuses["fl-a"].attempts == 3
    await harness.put(Change("engine", "e1", dump(E1)))
    await harness.load_retries.retry_due(harness.fence)
    assert harness.engines.loads == []
    harness.now += 11
    await harness.load_retries.retry_due(harness.fence)
    assert harness.engines.loads == ["fl-a"]


async def test_a_trial_under_a_stale_fence_does_not_begin(harness):
    await failed(harness, retry=1)
    await depose(harness)
    harness.now = 100
    with pytest.raises(FencedError):
        await harness.load_retries.retry_due(harness.fence)
    assert harness.engines.loads == []


async def test_a_trial_while_the_store_is_away_says_so(harness):
    await failed(harness, retry=1)
    harness.now = 100
    harness.store.away = True
    with pytest.raises(StoreUnavailableError):
        await harness.load_retries.retry_due(harness.fence)
