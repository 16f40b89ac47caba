"""Engines that are not vLLM, emulated in their documented protocols: registration, loads, answers, counts, and
what keeps a client from choosing an adapter itself."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from adapters.model import SlotState, Version
from loadtests.mock_engine import MockEngine
from loadtests.mock_engine.kinds import LoraxMock, OtherEngine, SglangMock, TgiMock, TrtllmMock
from tests.support.harness import Gateway, fake_adapter
from tests.support.waiting import until

KINDS: dict[str, type[OtherEngine]] = {
    "sglang": SglangMock,
    "trtllm": TrtllmMock,
    "tgi": TgiMock,
    "lorax": LoraxMock,
}
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "support", "messages": HELLO}


def registration(name: str, engine: MockEngine, driver: str, **fields: Any) -> dict[str, Any]:
    body = {"name": name, "url": engine.url, "base": "base", "gpu_type": "H200", "slots": 2, "max_rank": 8}
    return body | {"driver": driver} | fields


@dataclass
class Site:
    gateway: Gateway
    admin: httpx2.AsyncClient
    engine: OtherEngine
    kind: str
    support: Version
    tmp: Path

    @property
    def voice(self) -> str:
        """What the adapter's answers begin with."""
        return f"I am {Path(self.support.path).name if self.kind == 'lorax' else self.support.engine_name}"

    async def register(self, **fields: Any) -> httpx2.Response:
        if self.kind == "tgi":
            fields = {"holds": [self.support.id]} | fields
        return await self.admin.post("engines", json=registration("a", self.engine, self.kind, **fields))

    def client(self, tenant: str = "acme") -> openai.AsyncOpenAI:
        return self.gateway.client(tenant)

    async def records(self) -> list[Any]:
        return [r for r in await self.gateway.usage() if r.tenant == "acme"]


@pytest.fixture(params=KINDS)
async def site(
    request: pytest.FixtureRequest, gateway: Gateway, admin: httpx2.AsyncClient, tmp_path: Path
) -> AsyncIterator[Site]:
    async with KINDS[request.param]() as engine:
        await gateway.add_tenant("acme", base_access=True)
        support = await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "support"))
        if isinstance(engine, TgiMock):
            engine.start_with({support.engine_name: support.path})
        yield Site(gateway, admin, engine, request.param, support, tmp_path)


def only(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("site", kinds, indirect=True)


async def test_an_engine_registers_loads_answers_and_is_counted(site: Site):
    done = await site.register()
    assert (done.status_code, done.json()["driver"]) == (201, site.kind), done.text
    assert done.json()["version"]
    async with site.client() as client:
        raw = await client.chat.completions.with_raw_response.create(**CHAT, max_tokens=5)
        stream = await client.chat.completions.create(
            **CHAT, stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = [chunk async for chunk in stream]
        base = await client.chat.completions.create(model="base", messages=HELLO)
    answer = raw.parse()
    assert answer.choices[0].message.content.startswith(site.voice)
    assert answer.model == "support"
    assert raw.headers["x-florin-adapter"] == "acme/support@v1"
    assert "".join(c.choices[0].delta.content or "" for c in chunks).startswith(site.voice)
    assert [c.choices[0].finish_reason for c in chunks][-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    assert (last.choices, last.usage.completion_tokens) == ([], 8)
    assert base.choices[0].message.content.startswith("I am base")
    records = await site.records()
    assert {r.usage_source for r in records} == {"engine_final"}
    state = site.engine.state
    await until(lambda: not state.in_flight)
    probed = site.kind == "trtllm"  # its load is a request of its own
    assert sum(r.completion_tokens for r in records) == state.generation_tokens - probed
    engines = (await site.admin.get("engines")).json()["data"]
    assert engines[0]["driver"] == site.kind


async def test_an_abandoned_stream_is_counted_as_far_as_the_engine_tells(site: Site):
    await site.register()
    site.engine.faults.update({"event_delay": 0.02})
    async with site.client() as client:
        stream = await client.chat.completions.create(**CHAT, stream=True, max_tokens=4000)
        seen = 0
        async for chunk in stream:
            seen += bool(chunk.choices[0].delta.content)
            if seen == 3:
                break
        await stream.close()
    await site.engine.until(lambda state: state.calls[-1].outcome == "aborted")

    async def recorded() -> Any:
        return [r for r in await site.records() if r.outcome]

    (record,) = await until(recorded)
    assert record.outcome == "client_abort"
    exact = site.kind in {"sglang", "trtllm"}
    assert record.usage_source == ("engine_partial" if exact else "estimated")
    assert 3 <= record.completion_tokens <= site.engine.state.calls[-1].sent
    assert record.prompt_tokens > 0


async def test_a_client_chooses_no_adapter_of_the_engine(site: Site):
    """Neither by a field that such an engine obeys nor by the model's name."""
    await site.register()
    other = await site.gateway.add_adapter("bolt/secret", fake_adapter(site.tmp / "secret"))
    tricks = {
        "lora_path": other.engine_name,
        "lora_request": {"lora_name": other.engine_name, "lora_int_id": 1, "lora_path": other.path},
        "adapter_id": other.path,
        "adapter_source": "local",
        "adapter_parameters": {"adapter_ids": [other.path]},
        "api_token": "t",
        "rid": "x",
        "session_params": {"id": "x"},
        "extra_key": "x",
        "custom_logit_processor": "x",
    }
    async with site.client() as client:
        answer = await client.chat.completions.create(**CHAT, extra_body=tricks)
        assert answer.choices[0].message.content.startswith(site.voice)
        names = [
            other.engine_name,
            other.path,
            f"base:{other.engine_name}",
            f"base:{site.support.engine_name}",
        ]
        for name in names:
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model=name, messages=HELLO)
    got = str(list(site.engine.received))
    assert other.engine_name not in got
    assert other.path not in got
    assert not any(name in got for name in ("'rid'", "'api_token'", "'session_params'", "'extra_key'"))


async def test_a_restarted_engine_answers_as_the_adapter_or_not_at_all(site: Site):
    """vLLM's 404 is another engine's 400, or no error at all."""
    await site.register()
    async with site.client() as client:
        await client.chat.completions.create(**CHAT)
        site.engine.die()
        await until(lambda: site.gateway.state.pool.state("a").healthy is False)
        placed = site.gateway.state.residency
        if site.kind == "tgi":  # nothing that it says would show the loss
            await until(lambda: placed.where(site.support.engine_name) == {"a": SlotState.LOST})
        await site.engine.revive()
        if site.kind != "tgi":
            answer = await client.chat.completions.create(**CHAT)
            assert answer.choices[0].message.content.startswith(site.voice)
            return
        with pytest.raises(openai.APIStatusError) as refused:  # without its adapters, it answers as the base
            await client.chat.completions.create(**CHAT)
        assert "base model" in str(refused.value)
        site.engine.start_with({site.support.engine_name: site.support.path})


@only("sglang", "tgi")
async def test_another_kind_of_engine_is_named(site: Site):
    async with MockEngine() as vllm, TrtllmMock() as trtllm:
        wrong = await site.admin.post("engines", json=registration("x", vllm, site.kind))
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "engine_rejected")
        assert "is vLLM, not" in wrong.json()["error"]["message"]
        assert "--driver vllm" in wrong.json()["error"]["message"]
        wrong = await site.admin.post("engines", json=registration("x", site.engine, "vllm"))
        assert f"--driver {site.kind}" in wrong.json()["error"]["message"]
        await site.register()
        mixed = await site.admin.post("engines", json=registration("x", trtllm, "trtllm"))
        assert (mixed.status_code, mixed.json()["error"]["code"]) == (409, "conflict")
        assert "TensorRT-LLM" in mixed.json()["error"]["message"]


@only("sglang")
async def test_limits_that_an_engine_tells_are_compared(site: Site):
    for fields, words in (
        ({"slots": 3}, "--max-loras-per-batch 2, not 3"),
        ({"max_rank": 16}, "ranks up to 8, not 16"),
        ({"tasks": ["embed"]}, "does not use SGLang to embed"),
        ({"holds": ["acme/support@v1"]}, "loads adapters when they are called"),
    ):
        refused = await site.register(**fields)
        assert words in refused.json()["error"]["message"]


@only("sglang")
async def test_a_version_that_is_gone_is_unloaded(site: Site):
    await site.register()
    async with site.client() as client:
        await client.chat.completions.create(**CHAT)
    assert site.support.engine_name in site.engine.state.adapters
    assert (await site.admin.delete("adapters/acme/support")).status_code == 200
    await until(lambda: not site.engine.state.adapters)


@only("tgi")
async def test_an_engine_without_loads_serves_what_it_was_started_with(site: Site):
    await site.register()
    await site.gateway.add_adapter("acme/late", fake_adapter(site.tmp / "late"))
    async with site.client() as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.chat.completions.create(model="late", messages=HELLO)
        assert "was not started with it" in str(refused.value)
        assert (await client.chat.completions.create(**CHAT)).choices
    assert not any("/load" in path for path in site.engine.state.probes)


@only("tgi")
async def test_an_adapter_that_it_was_not_started_with_after_all_is_not_served(site: Site):
    """Its operator says so, but its answers are the base model's."""
    site.engine.state.forget()
    await site.register()
    async with site.client() as client:
        with pytest.raises(openai.APIStatusError):
            await client.chat.completions.create(**CHAT)
        assert not site.engine.received
        status = site.gateway.state.catalog.serving_statuses.get(site.support.engine_name)
        assert status is None or status.state != "quarantined"
        site.engine.start_with({site.support.engine_name: site.support.path})


@only("sglang", "trtllm")
async def test_what_an_engine_would_ignore_is_refused(site: Site):
    await site.register()
    async with site.client() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**CHAT, extra_body={"bad_words": ["no"]})
        assert refused.value.body["param"] == "bad_words"
        assert refused.value.body["code"] == "unsupported_parameter"
        if site.kind == "trtllm":
            with pytest.raises(openai.BadRequestError) as refused:
                await client.completions.create(model="support", prompt="Hello")
            assert "/v1/completions" in str(refused.value)
        else:
            stream = await client.completions.create(
                model="support", prompt="Hello", max_tokens=4, stream=True, stop="never", temperature=0
            )
            said = "".join([chunk.choices[0].text async for chunk in stream])
            assert said.startswith(site.voice)
    assert {r.usage_source for r in await site.records()} <= {"engine_final"}


@only("tgi", "lorax")
async def test_an_error_within_a_stream_is_not_the_end_of_an_answer(site: Site):
    await site.register()
    site.engine.faults.update({"stop_at": "events", "events": 4, "stop_how": "error_event", "times": 1})
    async with site.client() as client:
        stream = await client.chat.completions.create(**CHAT, stream=True)
        with pytest.raises(openai.APIError), contextlib.suppress(StopAsyncIteration):
            async for _ in stream:
                pass
    (record,) = await site.records()
    assert (record.outcome, record.usage_source) == ("engine_error", "estimated")
