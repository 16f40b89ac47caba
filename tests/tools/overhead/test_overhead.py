"""The bench must not be won by a gateway that is broken."""

import orjson
import pytest

from loadtests.mock_engine import MockEngine, text
from loadtests.overhead.apis import APIS
from loadtests.overhead.checking import check_stream, check_whole
from loadtests.overhead.loadgen import Ask, Job, Load, Result
from loadtests.overhead.report import figures, ratios, undisturbed, verdicts
from loadtests.overhead.thin_mock import ThinMock

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def engine():
    async with MockEngine(base="base", log=0) as engine:
        yield engine


@pytest.fixture(params=[MockEngine, ThinMock])
async def either_engine(request):
    async with request.param(base="base", log=0) as engine:
        yield engine


async def run(engine, *, stream=False, expect="base", warmup=0.05, seconds=0.2) -> Result:
    body = {"model": "base", "messages": MESSAGES} | ({"stream": True} if stream else {})
    asks = [Ask(body, text(expect, 8, "stop"))]
    return await Load(Job("127.0.0.1", engine.port, asks, 2, seconds, warmup)).run()


@pytest.mark.parametrize("stream", [False, True])
async def test_right_answers_count(either_engine, stream):
    result = await run(either_engine, stream=stream)
    assert (result.errors, result.first_error) == (0, "")
    assert result.answers > 0
    assert result.seconds >= 0.2
    assert (result.events > 0) == stream
    assert result.latency_ms["p50"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_another_adapters_answer_is_an_error(either_engine, stream):
    result = await run(either_engine, stream=stream, expect="fl-mine")
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


async def test_unrequested_usage_is_an_error(either_engine):
    body = {"model": "base", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    asks = [Ask(body, text("base", 8, "stop"))]
    result = await Load(Job("127.0.0.1", either_engine.port, asks, 1, 0.1, 0.05)).run()
    assert result.answers == 0
    assert "usage" in result.first_error


def plain(cost_us: float, *, errors: int = 0, foreign: float = 0.0, bench_us: float = 14) -> Result:
    answers = round(0.9e6 / cost_us)
    bench = answers * bench_us / 2e6
    used = {"gateway": 0.9, "mock": bench, "loadgen": bench, "foreign": foreign}
    return Result(16, 1.0, answers=answers, errors=errors, cpu=used, latency_ms={"p99": 3.0})


def test_the_ratio_is_taken_within_each_round():
    rounds = {"raw": [plain(200), plain(400), plain(200)], "florin": [plain(240), plain(480), plain(300)]}
    ratio = ratios("plain", rounds, "raw")
    assert ratio.median == pytest.approx(1.2, rel=0.01)
    assert ratio.most == pytest.approx(1.5, rel=0.01)
    assert figures("plain", "florin", rounds)["cpu_us"].median == pytest.approx(300, rel=0.01)


def met(rounds) -> dict[str, bool]:
    return {verdict["measure"]: verdict["met"] for verdict in verdicts({"plain": rounds})}


def test_targets_are_the_rivals_figures():
    assert met({"vllm-router": [plain(50)], "florin": [plain(40)]}) == dict.fromkeys(
        ("cpu_us", "rate", "p99_ms"), True
    )
    assert met({"vllm-router": [plain(50)], "florin": [plain(60)]}) == {
        "cpu_us": False,
        "rate": False,
        "p99_ms": True,
    }
    assert met({"florin": [plain(60)]}) == {}


def test_a_wrong_answer_misses_every_target():
    assert not any(met({"vllm-router": [plain(50)], "florin": [plain(40, errors=1)]}).values())


@pytest.mark.parametrize("how", [{"foreign": 0.5}, {"foreign": -0.5}, {"bench_us": 28}])
def test_disturbed_rounds_do_not_count(how):
    disturbed = plain(400, **how)
    rounds = {"vllm-router": [plain(50), plain(60)], "florin": [plain(40), disturbed]}
    assert undisturbed(rounds["florin"]) == [0]
    assert figures("plain", "florin", rounds)["cpu_us"].most == pytest.approx(40, rel=0.01)
    assert ratios("plain", rounds, "vllm-router").most == pytest.approx(0.8, rel=0.01)


def test_disturbed_rounds_alone_meet_no_target():
    busy = [plain(40, foreign=0.5)] * 2
    assert not any(met({"vllm-router": [plain(50)], "florin": busy}).values())
    assert not any(met({"vllm-router": [plain(50, foreign=0.5)], "florin": [plain(40)]}).values())


def event(text: str, finish: str | None = None) -> bytes:
    return (
        b"data: "
        + orjson.dumps({"choices": [{"delta": {"content": text}, "finish_reason": finish}]})
        + b"\n\n"
    )


def test_the_delay_of_an_event_is_from_its_sending_to_its_last_byte():
    first, second = event("Hello @0000000001000000"), event("there @0000000002000000", "length")
    arrivals = [(1.5, first + second[:-1]), (2.25, second[-1:] + b"data: [DONE]\n\n")]
    problem, events = check_stream(200, arrivals, "Hellothere")
    assert problem == ""
    assert [e.arrived - e.sent for e in events] == [0.5, 0.25]


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, event("Hello", "stop"), "without its last event"),
        (200, event("Hello") + b"data: [DONE]\n\n", "without its last event"),
        (200, event("Hell", "stop") + b"data: [DONE]\n\n", "'Hell'"),
        (200, event("Hello", "stop") + b"data: [DONE]\n\n" + event("again"), "after the end"),
        (502, event("Hello", "stop") + b"data: [DONE]\n\n", "502"),
        (0, event("Jello"), "'Jello'"),
        (200, b'{"error":{}}', "without its last event"),
    ],
)
def test_incomplete_and_wrong_streams_are_found(status, body, problem):
    assert problem in check_stream(status, [(1.0, body)], "Hello")[0]


@pytest.mark.parametrize(
    ("name", "delta", "last", "whole"),
    [
        (
            "responses",
            b'event: x\ndata: {"type":"response.output_text.delta","delta":"Hello"}\n\n',
            b'event: x\ndata: {"type":"response.completed"}\n\n',
            {"output": [{"content": [{"text": "Hello"}]}], "usage": {"output_tokens": 1}},
        ),
        (
            "messages",
            b'event: x\ndata: {"type":"content_block_delta","delta":{"text":"Hello"}}\n\n',
            b'event: x\ndata: {"type":"message_stop"}\n\n',
            {"content": [{"text": "Hello"}], "usage": {"output_tokens": 1}},
        ),
    ],
)
def test_every_api_is_checked_in_its_own_words(name, delta, last, whole):
    api = APIS[name]
    problem, events = check_stream(200, [(1.0, delta + last)], "Hello", api)
    assert (problem, len(events)) == ("", 1)
    assert "without its last event" in check_stream(200, [(1.0, delta)], "Hello", api)[0]
    assert "after the end" in check_stream(200, [(1.0, delta + last + delta)], "Hello", api)[0]
    assert check_whole(200, orjson.dumps(whole), "Hello", api) == ""
    assert "no usage" in check_whole(200, orjson.dumps(whole | {"usage": {"output_tokens": 0}}), "Hello", api)
