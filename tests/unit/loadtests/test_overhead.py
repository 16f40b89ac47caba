"""The bench must not be won by a gateway that is broken."""

import sys

import pytest

from loadtests.mock_engine import MockEngine, text
from loadtests.overhead import cpu
from loadtests.overhead.loadgen import Job, Load, Result
from loadtests.overhead.report import figures, verdict

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def engine():
    async with MockEngine(base="base", log=0) as engine:
        yield engine


async def run(engine, *, stream=False, expect="base", warmup=0.05, seconds=0.2) -> Result:
    body = {"model": "base", "messages": MESSAGES} | ({"stream": True} if stream else {})
    job = Job("127.0.0.1", engine.port, body, text(expect, 8, "stop"), 2, seconds, warmup)
    return await Load(job).run()


@pytest.mark.parametrize("stream", [False, True])
async def test_right_answers_count(engine, stream):
    result = await run(engine, stream=stream)
    assert (result.errors, result.first_error) == (0, "")
    assert result.answers > 0
    assert result.seconds >= 0.2
    assert (result.events > 0) == stream
    assert result.latency_ms["p50"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_another_adapters_answer_is_an_error(engine, stream):
    result = await run(engine, stream=stream, expect="fl-mine")
    assert result.answers == 0
    assert "I am base" in result.first_error


@pytest.mark.parametrize(
    "faults",
    [
        {"status": 500},
        {"stop_at": "events", "events": 3, "stop_how": "reset"},
        {"stop_at": "events", "events": 3, "stop_how": "error_event"},
        {"abort": True},
    ],
)
async def test_failed_and_cut_streams_are_errors(engine, faults):
    engine.faults.update(faults)
    result = await run(engine, stream=True)
    assert result.answers == 0
    assert result.errors > 0


async def test_usage_that_nobody_asked_for_is_an_error(engine):
    body = {"model": "base", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    result = await Load(Job("127.0.0.1", engine.port, body, text("base", 8, "stop"), 1, 0.1, 0.05)).run()
    assert result.answers == 0
    assert "usage" in result.first_error


async def test_events_cut_anywhere_are_counted_alike(engine):
    engine.faults.split = 5
    result = await run(engine, stream=True)
    assert (result.errors, result.first_error) == (0, "")


def plain(cost_us: float, *, errors: int = 0, share: float = 0.9) -> Result:
    used = {"gateway": share, "mock": 0.1, "loadgen": 0.1}
    return Result(seconds=1.0, answers=round(share * 1e6 / cost_us), errors=errors, cpu=used)


def streams(cost_us: float, *, gap: float = 21.0) -> Result:
    used = {"gateway": cost_us / 100, "mock": 0.1, "loadgen": 0.1}
    return Result(seconds=1.0, events=10_000, cpu=used, gap_ms={"p99": gap})


def test_the_ratio_is_taken_within_each_round():
    rounds = {"bare": [plain(200), plain(400), plain(200)], "florin": [plain(240), plain(480), plain(300)]}
    judged = verdict("plain", rounds)
    assert judged["median"] == pytest.approx(1.2, rel=0.01)
    assert judged["most"] == pytest.approx(1.5, rel=0.01)
    assert judged["met"]
    assert figures("florin", "plain", rounds["florin"]).cpu_us == pytest.approx(300, rel=0.01)


def test_a_cost_above_the_target_misses_it():
    assert not verdict("plain", {"bare": [plain(200)], "florin": [plain(290)]})["met"]
    assert not verdict("streams", {"bare": [streams(30)], "florin": [streams(40)]})["met"]


def test_a_wrong_answer_misses_the_target():
    assert not verdict("plain", {"bare": [plain(200)], "florin": [plain(200, errors=1)]})["met"]


def test_disturbed_rounds_are_not_judged():
    bare, florin = [streams(10, gap=80.0), streams(20)], [streams(20), streams(22)]
    judged = verdict("streams", {"bare": bare, "florin": florin})
    assert (judged["undisturbed"], judged["rounds"]) == (1, 2)
    assert judged["median"] == pytest.approx(1.1)
    none_clean = verdict("plain", {"bare": [plain(300, share=0.3)], "florin": [plain(200)]})
    assert (none_clean["undisturbed"], none_clean["met"]) == (0, False)


def test_without_both_there_is_nothing_to_judge():
    assert verdict("plain", {"bare": [plain(200)]}) is None


def test_cpu_time_is_of_this_process_and_grows():
    import os

    before = cpu.seconds(os.getpid())
    while cpu.seconds(os.getpid()) < before + 0.02:
        sum(range(1000))
    assert cpu.name(os.getpid())
    assert os.getpid() in cpu.tree(os.getpid())
    assert cpu.seconds(sys.maxsize) == 0.0
