"""What the pool makes of probes and attempts: slow start, and streams that it gives up."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from adapters.model import Engine
from adapters.placement.policy import LEAST_SHARE
from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from gateway.routing.pool import HOPELESS_SECONDS, SILENT_SECONDS, STREAK, Pool
from tests.doubles.memory_store import MemoryStore


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock) -> Pool:
    catalog = Catalog()
    for name in "ab":
        catalog.engines[name] = engine(name)
    return Pool(catalog, Residency(), MemoryStore(), worker="w", slow_start=10.0, clock=clock)


def engine(name: str, url: str = "http://127.0.0.1:1") -> Engine:
    return Engine(name=name, url=url, base_model="base", gpu_type="h100", slots=2, max_rank=8)


def share(pool: Pool, name: str) -> float:
    (found,) = [c for c in pool.fleet("base", None, set()) if c.engine == name]
    return found.share


def test_what_a_new_worker_finds_is_not_new(pool: Pool):
    for state in pool.states():
        pool.mark_up(state)
    assert share(pool, "a") == 1


def test_an_engine_that_comes_back_starts_slowly(pool: Pool, clock: Clock):
    state, _ = pool.states()
    pool.mark_up(state)
    pool.mark_down(state, "gone")
    pool.mark_up(state)
    assert (share(pool, "a"), share(pool, "b")) == (LEAST_SHARE, 1)
    clock.now += 5
    pool.mark_up(state)  # as every probe says
    assert share(pool, "a") == 0.5
    clock.now += 5
    assert (share(pool, "a"), state.slow_from) == (1, None)


def test_a_new_engine_starts_slowly_when_it_is_up(pool: Pool, clock: Clock):
    pool.states()
    pool._catalog.engines["c"] = engine("c")
    state = pool.state("c")
    clock.now += 60  # loading its model
    pool.mark_up(state)
    assert share(pool, "c") == LEAST_SHARE


def test_another_address_is_another_engine(pool: Pool):
    state, _ = pool.states()
    pool.mark_up(state)
    pool._catalog.engines["a"] = engine("a", "http://127.0.0.1:2")
    pool.mark_up(pool.state("a"))
    assert share(pool, "a") == LEAST_SHARE


def test_a_suspicion_that_a_probe_clears_is_no_new_start(pool: Pool):
    state, _ = pool.states()
    pool.mark_up(state)
    state.suspect = True
    pool.mark_up(state)
    assert share(pool, "a") == 1


def test_one_that_keeps_failing_starts_slowly_though_its_probes_pass(pool: Pool, clock: Clock):
    state, _ = pool.states()
    pool.mark_up(state)
    for _ in range(STREAK - 1):
        pool.record_failed_attempt(state)
    assert share(pool, "a") == 1
    pool.record_failed_attempt(state)
    pool.mark_up(state)
    assert share(pool, "a") == LEAST_SHARE
    clock.now += 9
    pool.record_failed_attempt(state)
    assert share(pool, "a") == LEAST_SHARE


async def held(lease, reached: asyncio.Event, *, writing: bool) -> str:
    lease.task = asyncio.current_task()
    try:
        with lease.uninterrupted() if writing else contextlib.nullcontext():
            reached.set()
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        return "woken" if lease.acknowledge_abandonment() else "cancelled"
    return "abandoned" if lease.abandoned else "done"


@pytest.mark.parametrize(
    ("writing", "cancel", "told"),
    [
        (False, False, "woken"),
        (True, False, "abandoned"),
        (True, True, "cancelled"),
        (False, True, "cancelled"),
    ],
)
async def test_a_lease_given_up_wakes_its_task_but_not_while_it_writes(pool, writing, cancel, told):
    """A client that hangs up cancels the task as well, and that is not to be mistaken."""
    lease = pool.acquire("a", None)
    reached = asyncio.Event()
    task = asyncio.create_task(held(lease, reached, writing=writing))
    await reached.wait()
    lease.abandon("down")
    if cancel:
        task.cancel()
    assert await task == told


async def test_streams_that_can_go_on_elsewhere_leave_a_dead_engine_when_they_fall_silent(pool, clock):
    leases = {name: pool.acquire("a", None) for name in ("silent", "speaking", "bound")}
    for name, lease in leases.items():
        lease.task = asyncio.create_task(asyncio.sleep(60))
        lease.begin()
        lease.last_byte_at = clock.now
        lease.resumable = name != "bound"
    clock.now += SILENT_SECONDS + 1
    leases["speaking"].last_byte_at = clock.now
    pool.mark_down(pool.state("a"), "no answer")
    assert not any(lease.abandoned for lease in leases.values())  # there is no other engine
    pool.mark_up(pool.state("b"))
    pool.mark_down(pool.state("a"), "no answer")
    assert {name for name, lease in leases.items() if lease.abandoned} == {"silent"}
    clock.now += HOPELESS_SECONDS + 1
    pool.mark_down(pool.state("a"), "no answer")
    assert all(lease.abandoned for lease in leases.values())
    await asyncio.gather(*(lease.task for lease in leases.values()), return_exceptions=True)
