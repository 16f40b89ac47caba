"""What the gateway believes of an engine's metrics."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.routing.engine_scraper import clock_skew
from tests.unit.gateway.routing.conftest import ProberHarness


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


LIES = {
    "too much": "vllm:prompt_tokens_total 1e30\nvllm:generation_tokens_total 1\n",
    "an absurd gauge": "vllm:num_requests_waiting 1e18\n",
    "begun in the year 9999": "process_start_time_seconds 253370764800\n",
}
"""tests/unit/gateway/metering/test_engine_metrics.py has the others."""


def refused(world: ProberHarness) -> float:
    registry = world.metrics.registry
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
    assert (state.healthy, state.running, state.waiting, state.view.others_in_flight) == (True, 0, 0, 0)
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
    await world.prober.probe(world.pool.state("a"))
    assert (world.time.told, world.time.samples, refused(world)) == (["alive"], [], 1)


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
    assert clock_skew(date, now) == ahead * 1_000_000


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n', 0.5),
        ("vllm:kv_cache_usage_perc 7\n", None),
        ("vllm:kv_cache_usage_perc 1.2.3\n", None),
        ("vllm:kv_cache_usage_perc nan\n", None),
        ("", None),
    ],
)
async def test_the_use_of_the_kv_cache_is_shown_and_costs_no_sample(world: ProberHarness, said, shown):
    counters = "vllm:prompt_tokens_total 1\nvllm:generation_tokens_total 1\n"
    world.engine.faults.metrics = counters + said
    await world.prober.probe(world.pool.state("a"))
    assert world.pool.state("a").kv_usage == shown
    assert len(world.time.samples) == 1
