from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp
import pytest

from adapters.model import Engine
from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from gateway.metering.engine_metrics import EngineSample
from gateway.observability.metrics import Metrics
from gateway.routing.outlier_ejection import Standing
from gateway.routing.pool import Pool
from gateway.routing.prober import METRICS_EVERY, Prober, _skew
from loadtests.mock_engine import MockEngine
from tests.doubles.memory_store import MemoryStore
from tests.support.waiting import until


@dataclass
class TimeStub:
    """What the prober tells of engines' lives."""

    told: list[str] = field(default_factory=list)
    samples: list[EngineSample] = field(default_factory=list)

    def alive(self, engine: Engine, now: int, sample: EngineSample | None = None) -> None:
        assert now == 7
        self.told.append("alive")
        self.samples += [sample] if sample else []

    def missed(self, engine: Engine, now: int, *, down: bool) -> None:
        self.told.append("down" if down else "missed")

    def gone(self, name: str) -> None:
        self.told.append(f"gone {name}")


@dataclass
class ProberHarness:
    engine: MockEngine
    catalog: Catalog
    pool: Pool
    prober: Prober
    time: TimeStub


@pytest.fixture
async def world():
    async with MockEngine() as engine, aiohttp.ClientSession() as session:
        catalog, time = Catalog(), TimeStub()
        catalog.engines["a"] = Engine("a", engine.url, "base", "h100", 2, 8)
        pool = Pool(catalog, Residency(), MemoryStore(), worker="w")
        prober = Prober(pool, session, Metrics(), time, interval=0.01, timeout=0.5, clock=lambda: 7)  # type: ignore[arg-type]  # stand-ins
        yield ProberHarness(engine, catalog, pool, prober, time)


async def stop(task) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_a_scrape_brings_load_and_counters_at_once(world: ProberHarness):
    world.engine.state.prompt_tokens, world.engine.state.generation_tokens = 11, 5
    world.engine.faults.waiting = 3
    await world.prober.probe(world.pool.state("a"))
    [sample] = world.time.samples
    assert (sample.at, sample.prompt_tokens, sample.cached_tokens, sample.completion_tokens) == (7, 11, 0, 5)
    assert sample.epoch is not None
    assert abs(sample.epoch - world.engine.state.started * 1e6) <= 5_001
    assert sample.ready == round(world.engine.state.ready * 1e6)
    assert world.pool.state("a").waiting == 3
    assert world.time.told == ["alive"]


async def test_no_more_scrapes_than_before(world: ProberHarness):
    task = asyncio.create_task(world.prober.run())
    await until(lambda: world.engine.state.probes["/health"] >= 10)
    await stop(task)
    health, metrics = world.engine.state.probes["/health"], world.engine.state.probes["/metrics"]
    assert metrics <= health / METRICS_EVERY + 1
    assert len(world.time.samples) == metrics


async def test_what_becomes_of_an_engine_is_told(world: ProberHarness):
    state = world.pool.state("a")
    await world.prober.probe(state, scrape=False)
    world.engine.faults.health_delay = 60
    for _ in range(3):
        await world.prober.probe(state)
    world.engine.faults.reset()
    world.engine.faults.health_status = 503
    await world.prober.probe(state)
    world.engine.die()
    await world.prober.probe(state)
    await world.engine.revive()
    world.engine.faults.reset()
    await world.prober.probe(state)
    assert world.time.told == ["alive", "missed", "missed", "down", "down", "down", "alive"]


async def test_one_that_left_the_registry_is_told_too(world: ProberHarness):
    task = asyncio.create_task(world.prober.run())
    await until(lambda: world.time.told)
    del world.catalog.engines["a"]
    await until(lambda: "gone a" in world.time.told)
    told = len(world.time.told)
    await asyncio.sleep(0.05)
    assert len(world.time.told) == told
    await stop(task)


async def test_the_last_look_asks_those_that_are_up(world: ProberHarness):
    await world.prober.final_probe()
    assert world.time.told == []  # not looked at yet
    await world.prober.probe(world.pool.state("a"), scrape=False)
    world.engine.state.generation_tokens = 9
    await world.prober.final_probe()
    assert [s.completion_tokens for s in world.time.samples] == [9]
    world.engine.die()
    await world.prober.final_probe()
    assert world.time.told[-1] == "down"


LIES = {
    "too much": "vllm:prompt_tokens_total 1e30\nvllm:generation_tokens_total 1\n",
    "beyond floats": "vllm:prompt_tokens_total 1e400\nvllm:generation_tokens_total 1\n",
    "infinite": "vllm:prompt_tokens_total inf\nvllm:generation_tokens_total 1\n",
    "no number": "vllm:prompt_tokens_total nan\nvllm:generation_tokens_total 1\n",
    "below nothing": "vllm:prompt_tokens_total -5\nvllm:generation_tokens_total 1\n",
    "two points": "vllm:prompt_tokens_total 1.1.1\nvllm:generation_tokens_total 1\n",
    "an infinite gauge": "vllm:num_requests_running inf\n",
    "an absurd gauge": "vllm:num_requests_waiting 1e18\n",
    "a negative gauge": "vllm:num_requests_waiting -1e18\n",
    "begun in the year 9999": "process_start_time_seconds 253370764800\n",
    "begun before time": "process_start_time_seconds -1\n",
}


def refused(world: ProberHarness) -> float:
    registry = world.prober._metrics.registry
    return registry.get_sample_value("florin_engine_samples_refused_total", {"engine": "a"}) or 0


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_metrics_that_cannot_be_cost_an_engine_its_sample_alone(world: ProberHarness, lie, caplog):
    state = world.pool.state("a")
    await world.prober.probe(state)
    began = state.process_started
    world.engine.faults.metrics = lie
    for _ in range(3):
        await world.prober.probe(state)
    assert len(world.time.samples) == 1
    assert world.time.told == ["alive"] * 4
    assert (state.healthy, state.running, state.waiting, state.in_flight_of_others) == (True, 0, 0, 0)
    assert state.process_started == began  # it is not taken for another process
    assert refused(world) == 3
    assert sum("are refused" in message for message in caplog.messages) == 1
    world.engine.faults.reset()
    await world.prober.probe(state)
    assert len(world.time.samples) == 2
    assert sum("taken again" in message for message in caplog.messages) == 1


@pytest.mark.parametrize(
    ("text", "times"),
    [('vllm:prompt_tokens_total{a="b"} 1\n', 1_000_000), ("#" * 1000, 50_000), ("# no line's end ", 600_000)],
    ids=["a million label sets", "50 MB of comments", "no line's end"],
)
async def test_metrics_without_end_are_read_to_a_bound(world: ProberHarness, text: str, times: int):
    world.engine.faults.metrics, world.engine.faults.metrics_times = text, times
    world.prober._timeout = aiohttp.ClientTimeout(total=30)
    await world.prober.probe(world.pool.state("a"))
    assert (world.time.told, world.time.samples, refused(world)) == (["alive"], [], 1)


async def test_an_engine_that_left_is_logged_anew_when_it_is_back(world: ProberHarness):
    world.engine.faults.metrics = LIES["too much"]
    task = asyncio.create_task(world.prober.run())
    await until(lambda: world.prober._refused)
    del world.catalog.engines["a"]
    await until(lambda: not world.prober._refused)
    await stop(task)


async def test_an_engine_that_hangs_is_booked_as_up(world: ProberHarness):
    """It costs all the same."""
    state = world.pool.state("a")
    state.standing = Standing(since=0.0)
    world.engine.stop_core()
    await world.prober.probe(state)
    assert (world.time.told, state.healthy, state.usable) == (["alive"], True, False)


@pytest.mark.parametrize(
    ("date", "ahead"),
    [
        ("Sun, 22 Nov 2026 05:00:00 GMT", 0),
        ("Sun, 22 Nov 2026 05:00:04 GMT", 0),
        ("Sun, 22 Nov 2026 03:00:00 GMT", -7200),
        ("Sun, 22 Nov 2026 06:00:00 GMT", 3600),
        ("", 0),
        ("yesterday", 0),
        ("Sun, 99 Nov 99999 05:00:00 GMT", 0),
    ],
)
def test_an_answer_tells_how_wrong_its_hosts_clock_is(date, ahead):
    now = int(datetime(2026, 11, 22, 5, tzinfo=UTC).timestamp()) * 1_000_000
    assert _skew(date, now) == ahead * 1_000_000
