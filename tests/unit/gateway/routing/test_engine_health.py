"""What follows from probes and failed attempts: slow start, and streams that are given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.model import Engine
from adapters.placement.residency import Residency
from adapters.placement.scheduling.slow_start import LEAST_SHARE
from adapters.registry.catalog import Catalog
from gateway.routing.engine_health import HOPELESS_SECONDS, SILENT_SECONDS, STREAK, EngineHealth
from gateway.routing.engine_state import EngineLostError, EngineState, Lease
from gateway.routing.fleets import Fleets
from gateway.routing.leases import Leases
from gateway.routing.pool import Pool
from tests.doubles.memory_store import MemoryStore
from tests.unit.gateway.routing.conftest import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Fleet:
    """Two engines. Mutable: the catalog."""

    def __init__(self, clock: Clock) -> None:
        self.catalog = Catalog()
        for name in "ab":
            self.catalog.engines[name] = engine(name)
        self.pool = Pool(self.catalog)
        self.health = EngineHealth(self.pool, clock=clock)
        self.leases = Leases(self.pool, MemoryStore(), "w", clock=clock)
        self.fleets = Fleets(self.pool, Residency(), slow_start=10.0, clock=clock)

    def state(self, name: str) -> EngineState:
        state = self.pool.state(name)
        assert state
        return state

    def lease(self, name: str) -> Lease:
        lease = self.leases.acquire(name, None)
        assert lease
        return lease

    def takes(self, name: str, tokens: int) -> None:
        self.catalog.engines[name] = replace(self.catalog.engines[name], max_model_len=tokens)
        self.catalog.engine_changes += 1

    def share(self, name: str) -> float:
        fleet = self.fleets.of("base")
        fleet.check(fleet.engines[name])
        return fleet.engines[name].share


@pytest.fixture
def fleet(clock: Clock) -> Fleet:
    return Fleet(clock)


def engine(name: str, url: str = "http://127.0.0.1:1") -> Engine:
    return Engine(name=name, url=url, base_model="base", gpu_type="h100", slots=2, max_rank=8)


def test_what_a_new_worker_finds_is_not_new(fleet: Fleet):
    for state in fleet.pool.states():
        fleet.health.mark_up(state)
    assert fleet.share("a") == 1


def test_an_engine_that_comes_back_starts_slowly(fleet: Fleet, clock: Clock):
    state, _ = fleet.pool.states()
    fleet.health.mark_up(state)
    fleet.health.mark_down(state, "gone")
    fleet.health.mark_up(state)
    assert (fleet.share("a"), fleet.share("b")) == (LEAST_SHARE, 1)
    clock.now += 5
    fleet.health.mark_up(state)  # as every probe says
    assert fleet.share("a") == 0.5
    clock.now += 5
    assert (fleet.share("a"), state.slow_from) == (1, None)


def test_a_new_engine_starts_slowly_when_it_is_up(fleet: Fleet, clock: Clock):
    fleet.pool.states()
    fleet.catalog.engines["c"] = engine("c")
    state = fleet.state("c")
    clock.now += 60  # loading its model
    fleet.health.mark_up(state)
    assert fleet.share("c") == LEAST_SHARE


def test_another_address_is_another_engine(fleet: Fleet):
    state, _ = fleet.pool.states()
    fleet.health.mark_up(state)
    fleet.catalog.engines["a"] = engine("a", "http://127.0.0.1:2")
    fleet.health.mark_up(fleet.state("a"))
    assert fleet.share("a") == LEAST_SHARE


def test_a_suspicion_that_a_probe_clears_is_no_new_start(fleet: Fleet):
    state, _ = fleet.pool.states()
    fleet.health.mark_up(state)
    state.suspect = True
    fleet.health.mark_up(state)
    assert fleet.share("a") == 1


def test_one_that_keeps_failing_starts_slowly_though_its_probes_pass(fleet: Fleet, clock: Clock):
    state, _ = fleet.pool.states()
    fleet.health.mark_up(state)
    for _ in range(STREAK - 1):
        fleet.health.record_failed_attempt(state)
    assert fleet.share("a") == 1
    fleet.health.record_failed_attempt(state)
    fleet.health.mark_up(state)
    assert fleet.share("a") == LEAST_SHARE
    clock.now += 9
    fleet.health.record_failed_attempt(state)
    assert fleet.share("a") == LEAST_SHARE


async def test_streams_that_can_go_on_elsewhere_leave_a_dead_engine_when_they_fall_silent(fleet, clock):
    leases = {name: fleet.lease("a") for name in ("silent", "speaking", "bound")}
    for name, lease in leases.items():
        lease.begin()
        lease.last_byte_at = clock.now
        lease.resumable = name != "bound"
    clock.now += SILENT_SECONDS + 1
    leases["speaking"].last_byte_at = clock.now
    fleet.health.mark_down(fleet.state("a"), "no answer")
    assert not any(lease.abandoned for lease in leases.values())  # there is no other engine
    fleet.health.mark_up(fleet.state("b"))
    fleet.health.mark_down(fleet.state("a"), "no answer")
    assert {name for name, lease in leases.items() if lease.abandoned} == {"silent"}
    clock.now += HOPELESS_SECONDS + 1
    fleet.health.mark_down(fleet.state("a"), "no answer")
    assert all(lease.abandoned for lease in leases.values())
    with pytest.raises(EngineLostError), leases["bound"].scope:
        pass


def test_what_a_request_may_have_at_most_is_known_once_all_engines_have_told(fleet: Fleet):
    assert fleet.fleets.context("base") == 0
    fleet.takes("a", 8192)
    assert fleet.fleets.context("base") == 0, "b may take more"
    fleet.takes("b", 4096)
    assert fleet.fleets.context("base") == 8192
    assert fleet.fleets.context("another") == 0
