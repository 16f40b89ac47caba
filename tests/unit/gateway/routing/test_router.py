"""Where a request goes next, from what its attempts have met: real pool, residency and budget; no engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.errors import LoadFailedError, NoEngineError, PlacementError
from adapters.model import Engine, Guard, Placement, SlotState, Trial, Version, dump
from adapters.placement.residency import Residency
from adapters.placement.scheduling.policies import POLICIES
from adapters.placement.scheduling.prefix_cache import SAVED
from adapters.registry.catalog import Catalog, Target
from gateway.errors import FlorinError
from gateway.routing.canary_counts import CanaryCounts
from gateway.routing.engine_deaths import DeathTracker
from gateway.routing.engine_health import EngineHealth
from gateway.routing.engine_state import Lease
from gateway.routing.fleets import Fleets
from gateway.routing.leases import Leases
from gateway.routing.pool import Pool
from gateway.routing.queue_refusals import QueueLimits
from gateway.routing.request_identity import RequestIdentity
from gateway.routing.retries import Retries
from gateway.routing.retry_budget import RetryBudget
from gateway.routing.router import Router
from gateway.routing.routing_state import MAX_ATTEMPTS, MAX_DETOURS, RoutingState
from gateway.routing.suspect_isolation import SuspectIsolation
from gateway.routing.turns import Lack
from gateway.routing.upstream import RetryElsewhere
from tests.doubles.memory_store import MemoryStore
from tests.support.harness import engine_document
from tests.support.waiting import PATIENCE_S, until

VERSION = Version("acme/support", 3, "sha256:0", "fl-a", "/a", "base", 8, 1, "test", 1)
BASE = Target(None, "base")
ADAPTER = Target(VERSION, "base")


@dataclass
class Fleet:
    """Two engines that are up, and a router over them. Mutable: clock, what was loaded, what waiting found."""

    at_once: bool = True
    """Whether requests try to be placed at once, as all do in the gateway: what comes of it must be the same."""
    now: float = 1000.0
    share: float = 0.2
    loads: list[dict[str, Any]] = field(default_factory=list)
    replicas: list[str] = field(default_factory=list)
    load_on: str = ""
    """Where another worker loads the version."""
    room: bool = True
    """Whether there is a slot for a replica."""
    load_error: Exception | None = None
    waited: list[float] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None
    """Happens during each load and each wait."""

    def __post_init__(self) -> None:
        self.catalog = Catalog()
        for name in "ab":
            self.catalog.engines[name] = engine_document(name)
        self.residency = Residency(self.clock)
        store = MemoryStore()
        self.pool = Pool(self.catalog)
        self.health = EngineHealth(self.pool, clock=self.clock)
        for state in self.pool.states():
            self.health.mark_up(state)
        self.health.wait_for_probe = self.wait_for_probe  # type: ignore[method-assign]  # no prober runs
        self.leases = Leases(self.pool, store, "w", clock=self.clock)
        self.fleets = Fleets(self.pool, self.residency, clock=self.clock)
        self.budget = RetryBudget(self.share, clock=self.clock)
        self.deaths = deaths = DeathTracker(store, "w", lambda *_: None, clock=self.clock)
        hangs = DeathTracker(store, "w", lambda *_: None, hangs=True, clock=self.clock)
        self.retries = Retries(
            self.health, self.budget, deaths=deaths, hangs=hangs, timeout=30.0, clock=self.clock
        )
        self.router = Router(
            self.catalog,
            self.fleets,
            self.leases,
            SimpleNamespace(  # type: ignore[arg-type]
                ensure_resident=self.ensure_resident,
                open_replica=self.open_replica,
                loads_since=lambda *_: len(self.loads),
            ),
            self.retries,
            SuspectIsolation(self.leases, deaths=deaths, hangs=hangs, clock=self.clock),
            scheduler=POLICIES["cost"](),
            hangs=SimpleNamespace(hanging=lambda _: []),  # type: ignore[arg-type]
            counts=CanaryCounts(store, lambda: int(self.now * 1e6)),
            changed=self.changed,
            clock=self.clock,
        )

    def clock(self) -> float:
        return self.now

    async def changed(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds
        self.meanwhile()

    async def wait_for_probe(self, _state: object) -> None:
        pass

    async def ensure_resident(self, version: Version, choose: Any, **options: Any) -> str:
        self.loads.append(options)
        self.now += 0.1
        self.meanwhile()
        if self.load_error:
            raise self.load_error
        engine: Engine | None = choose(())
        name = self.load_on or options["reload_on"] or (engine.name if engine else None)
        if name is None:
            raise NoEngineError("none")
        return name

    async def open_replica(self, version: Version, engine: Engine, *, deadline: float) -> bool:
        self.replicas.append(engine.name)
        return self.room

    def hold(self, engine: str) -> None:
        """The version is resident there."""
        held = Placement(engine, VERSION.engine_name, SlotState.RESIDENT)
        self.residency.load({"placement": {held.id: dump(held)}})

    def request(self, target: Target = BASE, **how: Any) -> RoutingState:
        identity = RequestIdentity(("acme", "acme/support"), what="w", payload=b"p", key=b"k")
        return self.retries.begin(target, identity, **how)

    async def place(self, request: RoutingState) -> Lease:
        lease = self.router.place_at_once(request) if self.at_once else None
        return lease or await self.router.place(request)

    async def attempt(self, request: RoutingState, trouble: RetryElsewhere) -> str:
        """One attempt that meets `trouble`; the engine's name."""
        lease = await self.place(request)
        try:
            self.retries.record_failure(request, lease, trouble)
        finally:
            lease.end()
        return name_of(lease)


def name_of(lease: Lease) -> str:
    return lease.state.engine.name


def died() -> RetryElsewhere:
    return RetryElsewhere("died", "gone")


def busy() -> RetryElsewhere:
    return RetryElsewhere("busy", "full", engine_worked=False)


@pytest.fixture(params=[True, False], ids=["at once", "searching"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return Fleet(at_once=request.param)


async def code(fleet: Fleet, request: RoutingState) -> str:
    with pytest.raises(FlorinError) as caught:
        await fleet.place(request)
    return caught.value.code


async def test_requests_spread_by_load(fleet: Fleet):
    leases = [await fleet.place(fleet.request()) for _ in range(4)]
    assert sorted(map(name_of, leases)) == ["a", "a", "b", "b"]
    for lease in leases:
        lease.end()
    assert fleet.leases.in_flight == 0


async def test_a_prompt_goes_where_it_was_seen_and_counts_as_far_as_it_is_not_cached(fleet: Fleet):
    first = await fleet.place(fleet.request(blocks=range(20), prompt_tokens=5_000))
    first.send(streams=True)
    first.begin()
    again = fleet.request(blocks=range(20), prompt_tokens=5_000)
    second = await fleet.place(again)
    assert name_of(second) == name_of(first)
    assert again.pick is not None
    assert second.prompt_tokens == pytest.approx(5_000 - SAVED * again.pick.cached, abs=1)
    assert again.pick.cached > 3_500
    record = SimpleNamespace(tokens=(5_000, 0, 1), first=0, outcome="ok")
    for _ in range(30):  # the engine reports that it has nothing of it
        second.learn(record, answers=1)  # type: ignore[arg-type]  # what it reads of a record
    second.send(streams=True)
    second.begin()
    other = await fleet.place(fleet.request(blocks=range(20), prompt_tokens=5_000))
    assert name_of(other) != name_of(first)
    for lease in (first, second, other):
        lease.end()
    assert fleet.leases.in_flight == 0


async def test_the_next_attempt_goes_elsewhere_and_is_counted(fleet: Fleet):
    request = fleet.request()
    first = await fleet.attempt(request, died())
    second = await fleet.place(request)
    assert {first, name_of(second)} == {"a", "b"}
    assert (request.attempts, request.failures) == (2, 1)
    assert fleet.waited == []
    second.end()


async def test_where_all_have_failed_it_waits_a_moment_and_tries_again(fleet: Fleet):
    request = fleet.request()
    await fleet.attempt(request, busy())
    await fleet.attempt(request, busy())
    lease = await fleet.place(request)
    assert len(fleet.waited) == 1
    lease.end()


@pytest.mark.parametrize("target", [BASE, ADAPTER], ids=["for an engine", "for a load"])
async def test_a_request_whose_like_kills_engines_while_it_waits_is_not_sent(fleet: Fleet, target: Target):
    request = fleet.request(target)
    if target is BASE:
        for _ in range(2):
            await fleet.attempt(request, busy())

    def meanwhile() -> None:
        for engine in ("c", "d"):
            fleet.deaths.died(engine, [request.identity.suspect(begun=False)])

    fleet.meanwhile = meanwhile
    assert await code(fleet, request) == "request_suspected"
    assert fleet.leases.in_flight == 0


async def test_so_many_failed_attempts_are_enough(fleet: Fleet):
    request = fleet.request()
    for _ in range(MAX_ATTEMPTS):
        await fleet.attempt(request, died())
    assert await code(fleet, request) == "engine_failed"


async def test_detours_cost_no_attempt_but_end_too(fleet: Fleet):
    request = fleet.request()
    for _ in range(MAX_DETOURS - 1):
        await fleet.attempt(request, busy())
    assert request.failures == 0
    with pytest.raises(FlorinError) as caught:
        await fleet.attempt(request, busy())
    assert caught.value.code == "placement_timeout"
    assert caught.value.message == f"No engine started to answer for base in {MAX_DETOURS} attempts."


async def test_where_too_much_fails_nothing_is_tried_again(fleet: Fleet):
    while fleet.budget.allows():
        pass
    request = fleet.request()
    await fleet.attempt(request, died())
    assert await code(fleet, request) == "engine_failed"
    assert request.failures == 1


async def test_what_an_engines_end_took_along_is_not_held_against_the_request(fleet: Fleet):
    request = fleet.request()
    lease = await fleet.place(request)
    fleet.retries.record_failure(request, lease, died())
    lease.state.outages += 1
    lease.end()
    (await fleet.place(request)).end()
    assert request.failures == 0


async def test_a_suspect_engine_is_doubted(fleet: Fleet):
    request = fleet.request()
    lease = await fleet.place(request)
    fleet.retries.record_failure(
        request, lease, RetryElsewhere("unreachable", "refused", suspect=True, engine_worked=False)
    )
    lease.end()
    assert not lease.state.usable
    others = [await fleet.place(fleet.request()) for _ in range(2)]
    assert name_of(lease) not in map(name_of, others)


async def test_a_holder_takes_it_without_a_load(fleet: Fleet):
    fleet.hold("b")
    lease = await fleet.place(fleet.request(ADAPTER))
    assert (name_of(lease), fleet.loads) == ("b", [])


async def crowd(fleet: Fleet, engine: str) -> list[Lease]:
    """So many requests for the adapter that another replica is cheaper than their queue."""
    leases = [fleet.leases.acquire(engine, VERSION) for _ in range(40)]
    return [lease for lease in leases if lease]


async def test_a_hot_adapter_gets_a_replica(fleet: Fleet):
    fleet.hold("b")
    await crowd(fleet, "b")
    lease = await fleet.place(fleet.request(ADAPTER))
    assert (name_of(lease), fleet.replicas, fleet.loads) == ("a", ["a"], [])


async def test_where_there_is_no_slot_for_a_replica_its_holder_serves(fleet: Fleet):
    fleet.hold("b")
    fleet.room = False
    await crowd(fleet, "b")
    request = fleet.request(ADAPTER)
    lease = await fleet.place(request)
    assert (name_of(lease), fleet.replicas, fleet.waited) == ("b", ["a"], [])
    lease.end()
    (await fleet.place(request)).end()
    assert fleet.replicas == ["a"], "tried again at once"


async def test_a_required_label_is_never_given_up(fleet: Fleet):
    """Neither for an engine that holds the version, nor for one on which another worker has just loaded it,
    nor when there is no slot elsewhere."""
    fleet.catalog.engines["a"] = replace(fleet.catalog.engines["a"], region="eu")
    fleet.hold("b")
    request = fleet.request(ADAPTER, requires={"region": "eu"})
    lease = await fleet.place(request)
    assert (name_of(lease), fleet.replicas) == ("a", ["a"])
    fleet.residency.load({})
    fleet.load_on = "b"
    assert await code(fleet, fleet.request(ADAPTER, requires={"region": "eu"})) == "placement_timeout"
    fleet.hold("b")
    fleet.room = False
    assert await code(fleet, fleet.request(ADAPTER, requires={"region": "eu"})) == "placement_timeout"


async def test_an_engine_that_forgot_is_told_again_once(fleet: Fleet):
    fleet.hold("b")
    request = fleet.request(ADAPTER)
    forgot = RetryElsewhere("unknown_model", "no such model", unknown_model=True, engine_worked=False)
    await fleet.attempt(request, forgot)
    assert (request.reload_on, request.failed_on) == ("b", set())
    lease = await fleet.place(request)
    assert (name_of(lease), fleet.loads[0]["reload_on"]) == ("b", "b")
    lease.end()


async def test_a_load_that_failed_is_told_as_it_is(fleet: Fleet):
    fleet.load_error = LoadFailedError("no memory", "a")
    with pytest.raises(LoadFailedError, match="no memory"):
        await fleet.place(fleet.request(ADAPTER))


async def test_a_load_that_takes_too_long_is_a_timeout(fleet: Fleet):
    request = fleet.request(ADAPTER)
    fleet.load_error = PlacementError("slow")
    fleet.now = request.deadline + 1
    assert await code(fleet, request) == "placement_timeout"


@pytest.mark.parametrize("target", [BASE, ADAPTER], ids=["base", "adapter"])
async def test_engines_that_are_down_may_come_back_until_the_deadline(fleet: Fleet, target: Target):
    for state in fleet.pool.states():
        fleet.health.mark_down(state, "gone")
    assert await code(fleet, fleet.request(target)) == "placement_timeout"
    assert sum(fleet.waited) == pytest.approx(30, abs=1)


@pytest.mark.parametrize("engines", [(), (engine_document("a", max_rank=4),)], ids=["none", "too small"])
async def test_what_cannot_come_is_refused_at_once(fleet: Fleet, engines: Collection[Engine]):
    fleet.catalog.engines = {engine.name: engine for engine in engines}
    assert await code(fleet, fleet.request(ADAPTER)) == "no_engine"
    assert fleet.waited == []


async def test_a_refusal_does_not_name_whom_an_engine_is_for(fleet: Fleet):
    engines = (engine_document("a", serves="bolt/secret@v1"), engine_document("b", tenant="bolt"))
    fleet.catalog.engines = {engine.name: engine for engine in engines}
    with pytest.raises(FlorinError) as caught:
        await fleet.place(fleet.request(ADAPTER))
    assert (caught.value.code, "bolt" in caught.value.message) == ("no_engine", False)


@pytest.mark.parametrize(
    "engines",
    [
        (),
        (engine_document("a", stopping=True, stopped=1),),
        (engine_document("c", serves="bolt/secret@v1"), engine_document("d", tenant="bolt")),
    ],
    ids=["none", "stopped", "of others"],
)
async def test_where_no_engine_is_up_requests_wait_for_one_to_start(
    fleet: Fleet, engines: Collection[Engine]
):
    started, fleet.catalog.engines = fleet.catalog.engines["b"], {e.name: e for e in engines}
    turns = fleet.router.turns
    turns.limits = QueueLimits(timeout=PATIENCE_S, start_timeout=PATIENCE_S)
    sweeping = asyncio.create_task(turns.run())
    placing = [asyncio.create_task(fleet.place(fleet.request(target))) for target in (BASE, ADAPTER)]
    await until(lambda: turns.waiting == 2 or any(task.done() for task in placing))
    fleet.catalog.engines = {**fleet.catalog.engines, "b": started}
    leases = await asyncio.gather(*placing)
    assert [name_of(lease) for lease in leases] == ["b", "b"]
    assert fleet.waited == []
    sweeping.cancel()


@pytest.mark.parametrize(
    ("pools", "lack"),
    [
        ({"eu": "stopped", "us": "stopped"}, Lack.ENGINE),
        ({"us": "stopped"}, "no_engine"),
        ({"eu": "stopped", "us": "up"}, "no_engine"),
    ],
    ids=["all stopped", "none has the label", "another is up"],
)
def test_of_several_pools_without_engines_the_one_with_the_labels_must_start(fleet: Fleet, pools, lack):
    fleet.router.turns.limits = QueueLimits(start_timeout=300)
    fleet.catalog.engines = {
        region: engine_document(region, region=region, stopping=state != "up")
        for region, state in pools.items()
    }
    fleet.catalog.engine_changes += 1
    request = fleet.request(BASE, requires={"region": "eu"})
    if isinstance(lack, Lack):
        assert fleet.router._lack(request) is lack
        return
    with pytest.raises(FlorinError) as caught:
        fleet.router._lack(request)
    assert caught.value.code == lack


async def test_an_engine_that_dies_while_it_loads_is_waited_for_again(fleet: Fleet):
    turns = fleet.router.turns
    turns.limits = QueueLimits(timeout=PATIENCE_S, start_timeout=PATIENCE_S)
    sweeping = asyncio.create_task(turns.run())

    def die() -> None:
        for state in fleet.pool.states():
            fleet.health.mark_down(state, "gone")

    fleet.meanwhile, fleet.load_error = die, NoEngineError("none")
    placing = asyncio.create_task(fleet.place(fleet.request(ADAPTER)))
    await until(lambda: turns.waiting == 1 or placing.done())
    fleet.meanwhile, fleet.load_error = lambda: None, None
    fleet.health.mark_up(fleet.pool.known["b"])
    assert name_of(await placing) == "b"
    sweeping.cancel()


async def test_nobody_waits_for_an_engine_on_trial(fleet: Fleet):
    fleet.router.turns.enabled = True
    trial = Trial(5, Guard("rollback"), since=1)
    fleet.catalog.engines["a"] = replace(fleet.catalog.engines["a"], trial=trial)
    fleet.catalog.engine_changes += 1
    fleet.hold("a")
    fleet.router.turns.queue("base")  # which sets the limits
    fleet.pool.known["a"].view.limit = 0
    assert name_of(await fleet.place(fleet.request(ADAPTER))) == "b"
    assert fleet.replicas == ["b"]


async def test_a_prompt_is_remembered_where_it_was_sent_after_a_failover(fleet: Fleet):
    request = fleet.request(blocks=range(20))
    first = await fleet.attempt(request, died())
    second = await fleet.place(request)
    second.end()
    assert set(fleet.leases.prefixes.seen(range(20), fleet.now)) == {first, name_of(second)}


async def test_an_answer_ends_a_streak_of_failures(fleet: Fleet):
    lease = await fleet.place(fleet.request())
    fleet.health.record_failed_attempt(lease.state)
    assert lease.state.failure_streak == 1
    fleet.retries.record_answer(lease)
    assert lease.state.failure_streak == 0
    assert lease.identity
    assert lease.identity.answered


def test_what_must_wait_is_not_placed_at_once_and_holds_nothing():
    fleet = Fleet()

    def placed(target: Target = ADAPTER) -> bool:
        request = fleet.request(target)
        lease = fleet.router.place_at_once(request)
        assert lease is not None or (request.ticket.charge, fleet.leases.in_flight) == (None, 0)
        if lease is not None:
            lease.end()
        return lease is not None

    assert placed(BASE)
    assert not placed(), "it must be loaded"
    fleet.hold("b")
    assert placed()
    fleet.deaths.died("c", [fleet.request().identity.suspect(begun=False)])
    assert not placed(), "a request like it is suspect"
    unlike = RequestIdentity(("bolt", "bolt/other"), what="w", payload=b"p", key=b"k")
    assert fleet.router.place_at_once(fleet.retries.begin(ADAPTER, unlike)) is not None
    again = fleet.request(BASE)
    again.attempts = 1
    assert Fleet().router.place_at_once(again) is None, "only the first attempt is"
