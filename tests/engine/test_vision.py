"""A tiny LLaVA on a real engine, whose adapter thinks, looks and answers. What it thinks and says of an image
reaches the client in each API, streamed and not, as the engine says it and PEFT computes it, and is counted as
the engine counts it. And what other engines here cannot do: this one takes one request at a time, so it may score
prompts, and it has a judge."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import numpy as np
import pytest

from adapters.model import dump
from adapters.store.protocol.registry import Change
from deploy.demo.cache import built, digest
from deploy.demo.engine_env import EngineEnv, engine_environ
from deploy.demo.engines import EngineOptions, Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import SETTINGS, add_adapter, add_tenant, loaded, register, unload_all
from tests.engine.test_features import chunks, comparable, whole
from tests.engine.test_gateway import counters, running
from tests.support.harness import Gateway, running_gateway
from tests.support.waiting import until

MAKER = Path(__file__).parent / "tiny_vision.py"
QUESTION, GREETING = "Which colour is it?", "Hello"
IMAGE_TOKENS = 4
SCORED = ("Hello", " there, it is red.")
THOUGHTS = {"red": "I look.", "blue": "I look.", "": "A greeting."}
ANSWERS = {"red": "It is red.", "blue": "It is blue.", "": "Good day!"}
GREEDY: dict[str, Any] = {"model": "support", "temperature": 0}
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
LONG = 900


@pytest.fixture(scope="module")
def made(engine_env: EngineEnv, demo_model: DemoModel) -> Path:
    """The base, the adapters, the images, and what PEFT says: made once per machine."""

    def make(directory: Path) -> None:
        command = [str(engine_env.python), str(MAKER), str(demo_model.base), str(directory)]
        subprocess.run(command, check=True, capture_output=True, env=engine_environ())

    return built(f"tiny-vision-{digest(MAKER.read_bytes(), str(demo_model.base))}", make)


@pytest.fixture(scope="module")
def told(made: Path) -> Any:
    """What PEFT says."""
    return json.loads((made / "told.json").read_text())


@pytest.fixture(scope="module")
def seeing(
    made: Path, plugin: None, engine_env: EngineEnv, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    options = EngineOptions(
        max_num_seqs=1, kv_bytes=32 * 1024 * 1024, extra=("--reasoning-parser", "deepseek_r1")
    )
    served = DemoModel(made / "base", "llava", "", 8, (), {})
    with Fleet(engine_env, served, logs=tmp_path_factory.mktemp("llava"), count=1, options=options) as fleet:
        fleet.start()
        yield fleet


@pytest.fixture
async def gateway(
    seeing: Fleet, made: Path, tmp_path: Path, valkey_url: str, prefix: str
) -> AsyncIterator[Gateway]:
    """The engine and the adapter, registered with every check on, and loaded."""
    url = seeing.engines[0].url
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **SETTINGS) as running:
        await add_tenant(running, "acme", base_access=True)
        await register(running, url, "llava")
        await add_adapter(running, "acme/support", made / "support")
        async with running.client("acme", timeout=120) as client:
            await client.chat.completions.create(
                **GREEDY, max_tokens=1, messages=[{"role": "user", "content": "x"}]
            )
        yield running
    unload_all(url)


def data(made: Path, colour: str) -> str:
    return base64.b64encode((made / f"{colour}.png").read_bytes()).decode()


def chat(made: Path, colour: str) -> dict[str, Any]:
    if not colour:
        return {**GREEDY, "messages": [{"role": "user", "content": GREETING}]}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data(made, colour)}"}}
    parts = [image, {"type": "text", "text": QUESTION}]
    return {**GREEDY, "messages": [{"role": "user", "content": parts}]}


def responses(made: Path, colour: str) -> dict[str, Any]:
    url = f"data:image/png;base64,{data(made, colour)}"
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": QUESTION}]
    return {**GREEDY, "input": [{"role": "user", "content": parts}]}


async def test_images_and_reasoning_pass_unchanged_and_are_counted(
    gateway: Gateway, seeing: Fleet, made: Path, told: Any
):
    url = seeing.engines[0].url
    [name] = loaded(url)
    known = {record.id for record in await gateway.usage("acme")}
    expected, logprobs = [], {}
    async with (
        gateway.http(gateway.keys["acme"]) as florin,
        httpx2.AsyncClient(base_url=url, timeout=120, trust_env=False) as engine,
    ):
        for model, engines_name in (("support", name), ("llava", "llava")):
            for colour, said in ANSWERS.items():
                body = chat(made, colour) | {"model": model, "logprobs": True, "max_tokens": 16}
                direct = (await engine.post(CHAT, json={**body, "model": engines_name})).json()
                sent = chunks((await engine.post(CHAT, json={**body, **USAGE, "model": engines_name})).text)
                before = counters(seeing)
                answer = (await florin.post(CHAT, json=body)).json()
                got = chunks((await florin.post(CHAT, json={**body, **USAGE})).text)
                spent = counters(seeing) - before
                assert comparable(answer) == comparable(direct)
                streamed = told_by(got[:-1])
                assert streamed == told_by(sent[:-1])
                found = counts(answer)
                assert found == counts(direct) == counts(got[-1]) == counts(sent[-1])
                assert (spent["prompt"], spent["generation"]) == (2 * found[0], 2 * found[1])
                expected += [(model, *found)] * 2

                choice = answer["choices"][0]
                logprobs[model, colour] = [token["logprob"] for token in choice["logprobs"]["content"]]
                computed = told["answers"]["" if model == "llava" else model][colour]
                assert np.allclose(logprobs[model, colour], computed, atol=1e-3), "as PEFT"
                if model == "support":
                    message = choice["message"]
                    assert (message["reasoning"], message["content"]) == (THOUGHTS[colour], said)
                    assert (streamed["reasoning"], streamed["content"]) == (THOUGHTS[colour], said)
        text = {**GREEDY, "messages": [{"role": "user", "content": f"\n{QUESTION}"}], "max_tokens": 1}
        blind = (await engine.post(CHAT, json={**text, "model": name})).json()
        assert expected[0][1] == blind["usage"]["prompt_tokens"] + IMAGE_TOKENS
    assert not np.allclose(logprobs["llava", "red"][0], logprobs["llava", "blue"][0], atol=1e-3)
    records = [record for record in await gateway.usage("acme") if record.id not in known]
    assert [
        (
            r.adapter.removeprefix("acme/") or r.base_model,
            r.prompt_tokens,
            r.completion_tokens,
            r.reasoning_tokens,
        )
        for r in records
    ] == expected
    assert {(r.usage_source, r.billable) for r in records} == {("engine_final", True)}


def told_by(events: list[Any]) -> dict[str, Any]:
    said = whole(events)
    return said | {"reasoning": untagged(said["reasoning"])}


def untagged(thought: str) -> str:
    """vLLM 0.32 leaves the tag there if it comes in one event with what follows, which is a matter of timing."""
    return thought.removeprefix("<think>")


def counts(answer: Any) -> tuple[int, int, int]:
    usage = answer["usage"]
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"], thought


async def test_they_do_in_the_responses_api(gateway: Gateway, made: Path):
    asked: Any = responses(made, "blue")
    async with gateway.client("acme", timeout=120) as client:
        chatted = await client.chat.completions.create(**chat(made, "blue"))
        whole = await client.responses.create(**asked)
        async with client.responses.stream(**asked) as stream:
            events = [event async for event in stream]
        final = events[-1].response
        deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    for answer in (whole, final):
        reasoning, message = answer.output
        assert (reasoning.type, message.type) == ("reasoning", "message")
        assert untagged(reasoning.content[0].text) == THOUGHTS["blue"]
        assert answer.output_text == ANSWERS["blue"]
        assert answer.usage.input_tokens == chatted.usage.prompt_tokens
        assert answer.usage.output_tokens == chatted.usage.completion_tokens
        thought = answer.usage.output_tokens_details.reasoning_tokens
        assert thought == chatted.usage.completion_tokens_details.reasoning_tokens > 0
    assert untagged("".join(deltas)) == THOUGHTS["blue"]


async def test_they_do_in_anthropics_api(gateway: Gateway, made: Path):
    source = {"type": "base64", "media_type": "image/png", "data": data(made, "red")}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    asked: Any = {"model": "support", "max_tokens": 64, "extra_body": {"temperature": 0}}
    asked["messages"] = [{"role": "user", "content": blocks}]
    key = gateway.keys["acme"]
    async with gateway.client("acme", timeout=120) as client:
        chatted = await client.chat.completions.create(**chat(made, "red"))
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=key, timeout=120) as client:
        counted = await client.messages.count_tokens(model="support", messages=asked["messages"])
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            final = await stream.get_final_message()
    assert counted.input_tokens == chatted.usage.prompt_tokens
    for answer in (whole, final):
        thinking, text = answer.content
        assert (thinking.type, untagged(thinking.thinking)) == ("thinking", THOUGHTS["red"])
        assert (text.type, text.text) == ("text", ANSWERS["red"])
        read = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
        assert (read, answer.usage.output_tokens) == (
            chatted.usage.prompt_tokens,
            chatted.usage.completion_tokens,
        )


@pytest.mark.parametrize(
    ("route", "thought"),
    [(CHAT, '"reasoning":'), (CHAT, ""), (RESPONSES, "event: response.reasoning_text.delta")],
    ids=["chat", "hidden", "responses"],
)
async def test_who_leaves_while_it_thinks_is_billed_what_it_thought(
    gateway: Gateway, seeing: Fleet, made: Path, told: Any, route: str, thought: str
):
    known = {record.id for record in await gateway.usage("acme")}
    before = counters(seeing)
    endless = {"ignore_eos": True, "logit_bias": {str(told["end_of_thought"]): -100}}
    endless |= {"stream": True, "include_reasoning": bool(thought)}
    asked = responses(made, "red") | {"max_output_tokens": LONG}
    body = (chat(made, "red") | {"max_tokens": LONG} if route == CHAT else asked) | endless
    stream = ""

    async def read() -> None:
        nonlocal stream
        async with florin.stream("POST", route, json=body) as response:
            async for piece in response.aiter_text():
                stream += piece

    async def thinks() -> bool:
        if thought:
            return stream.count(thought) > 10
        return (await asyncio.to_thread(counters, seeing) - before)["generation"] > 20

    async with gateway.http(gateway.keys["acme"]) as florin:
        reading = asyncio.create_task(read())
        await until(thinks, what=lambda: stream)
        assert reading.cancel(), (stream, reading)
        await asyncio.wait([reading])
    assert thought or '"reasoning":' not in stream

    async def ended() -> list[Any]:
        return [record for record in await gateway.usage("acme") if record.id not in known]

    [record] = await until(ended)
    await until(lambda: not running(seeing))
    spent = counters(seeing) - before
    assert (record.outcome, record.usage_source, record.billable) == ("client_abort", "engine_partial", True)
    assert record.prompt_tokens == spent["prompt"]
    # The engine ends a request some steps after the client has left.
    assert 10 < record.completion_tokens <= spent["generation"] < LONG
    [name] = loaded(seeing.engines[0].url)
    again = chat(made, "red") | endless | {"model": name, "stream": False}
    again["max_tokens"] = record.completion_tokens
    async with httpx2.AsyncClient(base_url=seeing.engines[0].url, timeout=120, trust_env=False) as engine:
        direct = (await engine.post(CHAT, json=again)).json()
    assert counts(direct) == (record.prompt_tokens, record.completion_tokens, record.reasoning_tokens)
    assert record.reasoning_tokens > 10


async def test_perplexity_is_pefts(gateway: Gateway, told: Any):
    """The CPU build of 0.32 dies of scoring a prompt in a shared batch, so Florin sends it none; this one
    shares none."""
    safe = replace(gateway.state.catalog.engines["e0"], prompt_scores="safe")
    await gateway.commit(Change("engine", "e0", dump(safe)))
    case = dict(zip(("prompt", "completion"), SCORED, strict=True))
    expected = told["perplexity"]
    fields = {"data": json.dumps(case), "metric": "perplexity", "against": "base", "threshold": 1}
    path = "/admin/v1/adapters/acme/support"
    async with gateway.http() as http:
        begun = await http.post(f"{path}/versions/v1/evaluations", json=fields, timeout=120)
        assert begun.status_code == 201, begun.text

        async def evaluated() -> Any:
            evaluation = (await http.get(f"{path}/evaluations/{begun.json()['id']}")).json()
            return evaluation["status"] != "answering" and evaluation

        found = await until(evaluated)
    assert (found["status"], found["passed"]) == ("completed", False), found
    result = found["result"]
    assert result["perplexity"] == pytest.approx(expected["support"], rel=1e-3)
    assert result["against"]["perplexity"] == pytest.approx(expected[""], rel=1e-3)
