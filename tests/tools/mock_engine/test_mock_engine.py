"""The fake engine must be true to the real one where tests lean on it, and its faults must happen."""

import asyncio
import itertools
import json
from pathlib import Path

import httpx2
import pytest

from adapters.placement.fingerprint import MOST_UNLIKE, ProbeAnswer, distance, parse, request
from loadtests.mock_engine import MockEngine, text
from tests.support.harness import fake_adapter
from tests.support.waiting import PATIENCE_S

USAGE = {"include_usage": True, "continuous_usage_stats": True}
HELLO = [{"role": "user", "content": "hello there"}]


@pytest.fixture
async def engine():
    async with MockEngine(check_paths=False) as engine:
        yield engine


@pytest.fixture
async def http(engine):
    async with httpx2.AsyncClient(base_url=engine.url, timeout=PATIENCE_S) as client:
        yield client


async def load(http, name="fl-a", path="/somewhere"):
    return await http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})


async def chat(http, model="fl-a", **fields):
    return await http.post("/v1/chat/completions", json={"model": model, "messages": HELLO} | fields)


async def collect(http, into: list[str]):
    body = {"model": "base", "messages": HELLO, "stream": True}
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for part in answer.aiter_text():
            into.append(part)  # noqa: PERF401 - what came before a failure must stay


def read_events(body: str) -> list:
    assert body.endswith("data: [DONE]\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in body.split("\n\n")[:-2]]


async def test_the_beginning_of_an_answer_is_continued(http):
    await load(http)
    whole = text("fl-a", 8, "stop")
    for begun in ("I am fl-a", "I am fl-a\n", "I am fl-a\nCards arrive in"):
        go_on = {"continue_final_message": True, "add_generation_prompt": False}
        messages = [*HELLO, {"role": "assistant", "content": begun}]
        made = (await chat(http, messages=messages, **go_on)).json()
        body = {"model": "fl-a", "prompt": "hello there" + begun, "max_tokens": 99}
        other = (await http.post("/v1/completions", json=body)).json()
        said = [made["choices"][0]["message"]["content"], other["choices"][0]["text"]]
        assert [begun + text for text in said] == [whole, whole]
        assert made["usage"]["prompt_tokens"] - 3 == other["usage"]["prompt_tokens"] - 2
        assert made["usage"]["prompt_tokens"] + made["usage"]["completion_tokens"] == 3 + 8
    assert (await chat(http, messages=messages, continue_final_message=True)).status_code == 400


async def test_an_adapter_answers_in_its_own_name(http):
    await load(http)
    answer = (await chat(http)).json()
    message = answer["choices"][0]["message"]["content"]
    assert message.startswith("I am fl-a\n")
    assert message == text("fl-a", 8, "stop")
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    ("options", "with_usage"),
    [(None, []), ({"include_usage": True}, [False] * 5 + [True]), (USAGE, [True] * 6)],
)
async def test_usage_is_on_the_chunks_where_vllm_puts_it(http, options, with_usage):
    await load(http)
    body = (await chat(http, stream=True, max_tokens=4, stream_options=options)).text
    events = read_events(body)
    assert [("usage" in event) for event in events] == (with_usage or [False] * 5)
    if options == USAGE:
        assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 4, 4]
        assert events[-1]["choices"] == []


async def test_several_prompts_and_choices_count_their_own_on_chunks_and_all_at_the_end(http):
    await load(http)
    fields = {"model": "fl-a", "prompt": ["one two", "one"], "n": 2, "max_tokens": 2, "stream": True}
    body = (await http.post("/v1/completions", json=fields | {"stream_options": USAGE})).text
    *chunks, last = read_events(body)
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1, 2, 3] * 2
    assert [chunk["usage"]["prompt_tokens"] for chunk in chunks[:4]] == [2, 2, 1, 1]
    assert last["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11, "prompt_tokens_details": None,
    }  # fmt: skip


async def test_a_prefix_is_cached_for_its_salt_and_adapter_only(http):
    await load(http)
    await load(http, "fl-b")
    long = [{"role": "user", "content": "word " * 40}]

    async def cached(model, salt):
        answer = await chat(http, model, messages=long, cache_salt=salt)
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [await cached("fl-a", "x"), await cached("fl-a", "x")] == [0, 32]
    assert [await cached("fl-a", "y"), await cached("fl-b", "x")] == [0, 0]


async def test_loads_answer_as_vllm_does(engine, http, tmp_path):
    assert (await load(http)).text == "Success: LoRA adapter 'fl-a' added successfully."
    again = await load(http)
    assert (again.status_code, again.json()["error"]["type"]) == (400, "InvalidUserInput")
    assert (await load(http, "base")).status_code == 400
    unload = "/v1/unload_lora_adapter"
    assert (await http.post(unload, json={"lora_name": "fl-a"})).status_code == 200
    assert (await http.post(unload, json={"lora_name": "fl-a"})).status_code == 404
    assert [(call.action, call.status) for call in engine.state.admin] == [
        ("load", 200), ("load", 400), ("load", 400), ("unload", 200), ("unload", 404),
    ]  # fmt: skip


async def test_an_unknown_model_is_vllms_404(http):
    answer = await chat(http, "fl-gone")
    assert answer.status_code == 404
    assert answer.json() == {
        "error": {
            "message": "The model `fl-gone` does not exist. Valid aliases: base.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": None},
        {"max_tokens": 0},
        {"n": 0},
        {"stream_options": USAGE},
        {"cache_salt": ""},
    ],
)
async def test_what_vllm_refuses_is_refused(http, fields):
    answer = await chat(http, "base", **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)


async def test_failures_last_as_many_requests_as_told(engine, http):
    engine.faults.update({"status": 503, "times": 2})
    assert [(await chat(http, "base")).status_code for _ in range(3)] == [503, 503, 200]


async def test_a_fault_can_single_out_one_model(engine, http):
    await load(http)
    engine.faults.update({"status": 500, "only": "fl-a"})
    assert (await chat(http, "base")).status_code == 200
    assert (await chat(http)).status_code == 500


@pytest.mark.parametrize("stop_at", ["headers", "first_event", "events"])
@pytest.mark.parametrize("stop_how", ["reset", "close", "mid_event"])
async def test_death_on_the_wire_is_seen_by_the_client(engine, http, stop_at, stop_how):
    engine.faults.update({"stop_at": stop_at, "stop_how": stop_how, "times": 1})
    received = []
    with pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError)):
        await collect(http, received)
    assert "".join(received).count("\n\n") == (3 if stop_at == "events" else 0)
    assert (await chat(http, "base")).status_code == 200


async def test_an_error_event_ends_the_stream_well_formed(engine, http):
    engine.faults.update({"stop_at": "events", "events": 3, "stop_how": "error_event"})
    *events, error = read_events((await chat(http, "base", stream=True)).text)
    assert len(events) == 3
    assert error["error"]["code"] == 500


async def test_a_draining_engine_answers_abort(engine, http):
    engine.faults.abort = True
    whole = (await chat(http, "base")).json()
    assert whole["choices"][0]["finish_reason"] == "abort"
    assert whole["usage"]["completion_tokens"] == 0
    streamed = read_events((await chat(http, "base", stream=True)).text)
    assert streamed[-1]["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("faults", [{"split": 1}, {"split": 7, "merge": 3}, {"merge": 100}])
async def test_events_survive_any_cut(engine, http, faults):
    plain = read_events((await chat(http, "base", stream=True)).text)
    engine.faults.update(faults)
    cut = read_events((await chat(http, "base", stream=True)).text)
    assert [event["choices"] for event in cut] == [event["choices"] for event in plain]


async def test_a_client_that_leaves_is_noticed(engine, http):
    engine.faults.event_delay = 0.01
    fields = {"model": "base", "messages": HELLO, "stream": True, "max_tokens": 2000, "ignore_eos": True}
    async with http.stream("POST", "/v1/chat/completions", json=fields) as answer:
        async for _ in answer.aiter_text():
            break
    await engine.until(lambda state: state.calls[-1].outcome == "aborted")
    assert 0 < engine.state.calls[-1].sent < 2000
    assert not engine.state.running


async def test_loads_can_be_slow_and_fail(engine, http):
    engine.faults.update({"load_status": 500, "load_times": 1, "load_delay": 0.01})
    assert [(await load(http)).status_code for _ in range(2)] == [500, 200]


async def test_metrics_show_what_runs(engine, http):
    engine.faults.update({"first_byte_delay": 60.0, "waiting": 4})
    asking = asyncio.create_task(chat(http, "base"))
    await engine.until(lambda state: state.running)
    asking.cancel()
    await engine.until(lambda state: not state.running)
    body = (await http.get("/metrics")).text
    assert 'vllm:num_requests_running{engine="0",model_name="base"} 0.0' in body
    assert 'vllm:num_requests_waiting{engine="0",model_name="base"} 4.0' in body
    assert engine.state.calls[-1].outcome == "aborted"


# -- probes for fingerprints


async def probe(engine: MockEngine, model: str) -> ProbeAnswer:
    async with httpx2.AsyncClient(base_url=engine.url, trust_env=False) as http:
        answer = await http.post("/v1/completions", json=request(model, "salt"))
        answer.raise_for_status()
        return parse(answer.json())


async def load_files(engine: MockEngine, name: str, path: Path) -> None:
    async with httpx2.AsyncClient(base_url=engine.url, trust_env=False) as http:
        await http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)})


async def test_probes_tell_adapters_apart_by_name_and_files_and_agree_across_engines(tmp_path):
    path = fake_adapter(tmp_path / "x")
    async with MockEngine() as one, MockEngine() as other:
        for engine in (one, other):
            await load_files(engine, "a", path)
        before = {model: await probe(one, model) for model in ("base", "a")}
        assert before == {model: await probe(other, model) for model in ("base", "a")}
        (path / "adapter_model.safetensors").write_bytes(b"other weights")
        await load_files(one, "b", path)
        assert await probe(one, "a") == before["a"]  # what was loaded is loaded
        answers = [*before.values(), await probe(one, "b")]
        async with MockEngine() as third:
            await load_files(third, "a", path)
            answers.append(await probe(third, "a"))
        apart = [distance(a, b) for a, b in itertools.combinations(answers, 2)]
        assert min(apart) > MOST_UNLIKE
        assert one.state.verifications == {"base": 1, "a": 2, "b": 1}
        assert (list(one.state.calls), one.state.prompt_tokens) == ([], 0)


async def test_probes_have_faults_of_their_own(tmp_path):
    async with MockEngine() as engine:
        await load_files(engine, "a", fake_adapter(tmp_path / "x"))
        base, sound = await probe(engine, "base"), await probe(engine, "a")
        faults = {"base": (True, True), "other": (True, False), "all_other": (False, False)}
        for fault, expected in faults.items():
            engine.faults.update({"probe_as": fault})
            same_base = await probe(engine, "base") == base
            like_base = await probe(engine, "a") == base
            assert (same_base, like_base) == expected
            assert await probe(engine, "a") != sound
        engine.faults.update({"probe_only": "b"})
        assert await probe(engine, "a") == sound
        engine.faults.update({"probe_status": 500, "status": 503})  # the latter is for requests
        assert await probe(engine, "base") == base
        with pytest.raises(httpx2.HTTPStatusError, match="500"):
            await probe(engine, "a")
        with pytest.raises(httpx2.HTTPStatusError, match="404"):
            await probe(engine, "nobody")
