"""Workers that share a store, and what each hears of the others' requests."""

from __future__ import annotations

import pytest

from adapters.errors import StoreUnavailableError
from adapters.model import Engine, Version
from adapters.registry.catalog import Catalog
from gateway.routing.engine_state import EngineState, Lease
from gateway.routing.leases import IDLE_SECONDS, LEASE_MS, Leases
from gateway.routing.pool import Pool
from tests.doubles.memory_store import MemoryStore
from tests.unit.gateway.routing.conftest import Clock

ENGINE = Engine("e1", "http://127.0.0.1:1", "base", "h100", slots=4, max_rank=8)


def version(name: str) -> Version:
    return Version(f"t/{name}", 1, "sha256:0", f"fl-{name}", f"/x/{name}", "base", 8, 1, "/src", 0)


class Worker:
    def __init__(self, name: str, store: MemoryStore, clock: Clock) -> None:
        catalog = Catalog()
        catalog.engines = {"e1": ENGINE}
        self.pool = Pool(catalog)
        self.pool.states()
        self.leases = Leases(self.pool, store, name, clock=clock)

    @property
    def state(self) -> EngineState:
        state = self.pool.state("e1")
        assert state
        return state

    def send(self, name: str, prompt_tokens: int = 0) -> Lease:
        lease = self.leases.acquire("e1", version(name), prompt_tokens=prompt_tokens)
        assert lease
        return lease

    def others(self) -> tuple[int, int, int]:
        """Requests in flight, prompt tokens pending, and adapters that only others have in flight."""
        view = self.state.view
        return view.others_in_flight, view.others_pending, view.others_active


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock=lambda: int(clock.now * 1000))


@pytest.fixture
def workers(store: MemoryStore, clock: Clock) -> tuple[Worker, Worker]:
    return Worker("w1", store, clock), Worker("w2", store, clock)


async def test_a_worker_hears_of_the_others_requests(workers: tuple[Worker, Worker]):
    one, other = workers
    first, second, third = one.send("a", 100), one.send("a", 20), one.send("b")
    other.send("b")
    await one.leases.flush()
    await other.leases.flush()
    assert other.others() == (3, 120, 1), "both have b in flight"
    assert other.state.view.load == 4
    first.send(streams=True)
    first.begin()
    await one.leases.flush()
    await other.leases.flush()
    assert (one.others(), other.others()) == ((1, 0, 0), (3, 20, 1))
    second.end()
    await one.leases.flush()
    await other.leases.flush()
    assert other.others() == (2, 0, 1), "a whole answer's prompt counts until it ends"
    for lease in (first, third):
        lease.end()
    await one.leases.flush()
    await other.leases.flush()
    assert other.others() == (0, 0, 0)


async def test_requests_of_a_worker_that_died_are_forgotten(workers: tuple[Worker, Worker], clock: Clock):
    dead, other = workers
    dead.send("a", 50)
    await dead.leases.flush()
    await other.leases.flush()
    clock.now += LEASE_MS / 1000 - 0.1
    await other.leases.flush()
    assert other.others() == (1, 50, 1)
    clock.now += 0.2
    await other.leases.flush()
    assert other.others() == (0, 0, 0)


async def test_reports_are_not_believed_for_long_without_the_store(
    workers: tuple[Worker, Worker], store: MemoryStore, clock: Clock
):
    one, other = workers
    one.send("a", 50)
    await one.leases.flush()
    await other.leases.flush()
    store.away = True
    for seconds, heard in ((1.0, (1, 50, 1)), (LEASE_MS / 1000, (0, 0, 0))):
        clock.now += seconds
        other.send("b")  # something to report
        with pytest.raises(StoreUnavailableError):
            await other.leases.flush()
        assert other.others() == heard


async def test_idle_workers_exchange_seldom_and_busy_ones_at_every_flush(
    workers: tuple[Worker, Worker], clock: Clock
):
    one, other = workers
    await other.leases.flush()
    lease = one.send("a")
    await one.leases.flush()
    clock.now += IDLE_SECONDS / 2
    await other.leases.flush()
    assert other.others() == (0, 0, 0)
    clock.now += IDLE_SECONDS / 2
    await other.leases.flush()
    assert other.others() == (1, 0, 1)
    lease.end()
    await one.leases.flush()
    await other.leases.flush()
    assert other.others() == (0, 0, 0)


async def test_metrics_tell_only_of_requests_that_no_worker_reported(workers: tuple[Worker, Worker]):
    one, other = workers
    one.send("a")
    one.send("a")
    other.send("b")
    await one.leases.flush()
    await other.leases.flush()
    state = other.state
    for _ in range(2):
        state.scraped(3, 0, own=1, of_workers=2)
    assert other.others()[0] == 2
    state.scraped(8, 0, own=1, of_workers=2)
    assert other.others()[0] == 2, "their worker may not have reported them yet"
    state.scraped(7, 0, own=1, of_workers=2)
    assert other.others()[0] == 2 + 4
    await other.leases.flush()
    assert other.others()[0] == 2 + 4
    state.scraped(0, 0, own=1, of_workers=2)
    assert other.others()[0] == 2, "never below what the workers report"
