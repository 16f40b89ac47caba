"""What a worker says an autoscaler should run, from its own requests and the others'."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.model import BaseModel, Engine, Guard, Trial, Version
from adapters.registry.catalog import Catalog, Target
from gateway.routing.engine_demand import WINDOW, EngineDemand
from gateway.routing.leases import Leases
from gateway.routing.pool import Pool
from tests.doubles.memory_store import MemoryStore
from tests.unit.gateway.routing.conftest import Clock

BASE = Target(None, "base")


def engine(name: str, gpu_type: str = "H100") -> Engine:
    return Engine(name, f"http://127.0.0.1:{ord(name)}", "base", gpu_type, slots=4, max_rank=8, seats=10)


def version(name: str) -> Version:
    return Version(f"t/{name}", 1, "sha256:0", f"fl-{name}", f"/x/{name}", "base", 8, 1, "/src", 0)


def target(name: str) -> Target:
    return Target(version(name), "base")


class Worker:
    def __init__(self, name: str, store: MemoryStore, clock: Clock) -> None:
        catalog = Catalog()
        catalog.engines = {"a": engine("a"), "b": engine("b")}
        self.catalog, self.clock = catalog, clock
        self.pool = Pool(catalog)
        self.pool.states()
        self.leases = Leases(self.pool, store, name, clock=clock)
        self.demand = EngineDemand(self.pool, self.leases.unplaced, slo_ttft=2.0, clock=clock)

    def at(self, seconds: float) -> dict[tuple[str, str], int]:
        """What is wanted after so many seconds of sampling."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += 1.0
            self.demand.sample()
        return self.demand.wanted()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def workers(clock: Clock) -> tuple[Worker, Worker]:
    store = MemoryStore(clock=lambda: int(clock.now * 1000))
    return Worker("w1", store, clock), Worker("w2", store, clock)


async def test_every_worker_counts_the_requests_of_all_of_them(workers):
    one, other = workers
    for _ in range(3):
        one.leases.acquire("a", version("x"), prompt_tokens=100)
    one.leases.acquire("b", version("x"))
    one.leases.unplaced.add(target("y"))
    one.leases.unplaced.add(target("y"))
    other.leases.unplaced.add(target("y"))
    other.leases.unplaced.add(target("z"))
    other.leases.unplaced.add(BASE)
    for worker in (one, other, one):
        await worker.leases.flush()
    for worker in workers:
        worker.demand.sample()
    load = one.demand.loads["base"]
    assert other.demand.loads["base"] == load
    assert (load.engines, load.capacity, load.slots) == (2, 20, 8)
    assert load.requests == 4 + 5
    assert load.adapters == 2 + 2, "x has a slot on each engine; y and z wait for one"
    assert load.delay == pytest.approx((18 * (4 + 5) + 0.065 * 300) / 2 / 1000)
    for _ in range(2):
        one.leases.unplaced.remove(target("y"))
    for worker in (one, other):
        await worker.leases.flush()
    other.demand.sample()
    assert other.demand.loads["base"].requests == 4 + 3


def test_more_are_wanted_at_once_and_fewer_after_the_peak_has_passed(workers):
    one, _ = workers
    assert one.at(1) == {("base", "H100"): 2}
    for _ in range(30):
        one.leases.unplaced.add(BASE)
    assert one.at(60)["base", "H100"] == 4  # 30 requests, 8 for each engine
    for _ in range(30):
        one.leases.unplaced.remove(BASE)
    for name in "cd":
        one.catalog.engines[name] = engine(name)
    assert one.at(WINDOW / 2) == {("base", "H100"): 4}
    assert one.at(2 * WINDOW) == {("base", "H100"): 1}


def test_a_worker_that_has_just_started_wants_no_fewer_than_there_are(workers):
    one, _ = workers
    assert one.demand.wanted() == {("base", "H100"): 2}
    assert one.at(WINDOW / 2) == {("base", "H100"): 2}


def test_an_outage_is_no_reason_to_want_fewer(workers):
    one, _ = workers
    one.at(2 * WINDOW)
    for state in one.pool.states():
        state.healthy = False
    assert one.at(2 * WINDOW) == {("base", "H100"): 2}


def test_engines_that_are_drained_are_not_counted_and_gpu_types_keep_their_mix(workers):
    one, _ = workers
    one.catalog.engines["b"] = replace(engine("b"), state="draining")
    one.catalog.engines["c"] = engine("c", "L4")
    assert one.at(1) == {("base", "H100"): 1, ("base", "L4"): 1}
    assert one.demand.loads["base"].engines == 2


async def test_an_idle_fleet_wants_no_engine_once_requests_wait_for_one(workers):
    """Whoever has used it: the other worker knows it from the engines' counters, and from its reports."""
    one, _ = workers
    state = one.pool.state("a")
    assert one.at(2 * WINDOW) == {("base", "H100"): 1}
    one.demand.to_zero = True
    assert one.at(1) == {("base", "H100"): 0}
    one.leases.unplaced.add(BASE)
    assert one.at(1) == {("base", "H100"): 1}
    one.leases.unplaced.remove(BASE)
    state.last_activity = one.clock.now + 10
    assert one.at(10 + WINDOW - 1) == {("base", "H100"): 1}
    assert one.at(1) == {("base", "H100"): 0}
    one.catalog.engines["a"] = replace(engine("a"), seats=1024)
    lease = one.leases.acquire("a", None)
    assert lease is not None
    assert one.at(3 * WINDOW) == {("base", "H100"): 1}, "a long answer is use, however small its share"
    lease.end()
    for state in one.pool.states():
        state.healthy = False
    assert one.at(2 * WINDOW) == {("base", "H100"): 2}, "nobody knows who would have called"


def test_a_fleet_that_has_just_come_is_not_idle(workers):
    one, _ = workers
    one.demand.to_zero = True
    engines, one.catalog.engines = one.catalog.engines, {}
    assert one.at(2 * WINDOW) == {}
    one.catalog.engines = engines
    assert one.at(WINDOW - 1) == {("base", "H100"): 1}
    assert one.at(2) == {("base", "H100"): 0}


async def test_what_waits_for_a_base_model_without_engines_is_known_to_all(workers):
    one, other = workers
    for worker in workers:
        worker.catalog.engines = {}
        worker.catalog.bases = {name: BaseModel(name) for name in ("base", "unused")}
    one.leases.unplaced.add(target("x"))
    other.leases.unplaced.add(BASE)
    for worker in (one, other, one):
        await worker.leases.flush()
    assert one.demand.waiting() == other.demand.waiting() == {"base": 2, "unused": 0}


def test_engines_on_trial_are_wanted_besides_the_others(workers):
    """They get a share, and no more however many requests there are."""
    one, _ = workers
    trial = Trial(5, Guard("rollback"), since=1)
    one.catalog.engines["new"] = replace(engine("n"), name="new", trial=trial)
    for _ in range(30):
        one.leases.unplaced.add(BASE)
    assert one.at(60) == {("base", "H100"): 4 + 1}
    assert one.demand.loads["base"].capacity == 20
    for name in "ab":
        del one.catalog.engines[name]
    assert one.at(60) == {("base", "H100"): 4}, "alone, it serves like any other"


def test_an_engine_that_queues_requests_is_worth_no_more_than_it_runs(workers):
    one, _ = workers
    state = one.pool.state("a")
    for _ in range(2):
        state.scraped(3, 5, 8, 0)
    one.demand.sample()
    assert one.demand.loads["base"].capacity == 3 + 10
