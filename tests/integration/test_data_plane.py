"""The application developer's side, over real sockets, with the official client."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import openai
import pytest

from tests.integration.conftest import Deployment
from tests.support.forms import LONG
from tests.support.waiting import until

HELLO = [{"role": "user", "content": "Hello"}]


def voice(deployment: Deployment, adapter: str) -> str:
    return deployment.gateway.state.catalog.versions[f"{adapter}@v1"].engine_name


async def test_every_form_of_the_name_reaches_the_adapter(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        for model in ("support", "acme/support", "support@v1", "acme/support@v1"):
            raw = await client.chat.completions.with_raw_response.create(model=model, messages=HELLO)
            answer = raw.parse()
            assert voice(deployment, "acme/support") in answer.choices[0].message.content
            assert answer.model == model
            assert raw.headers["x-florin-adapter"] == "acme/support@v1"
            assert raw.headers["x-florin-engine"] in {"a", "b"}
            assert raw.headers["x-request-id"].startswith("req-")


async def test_a_stream_has_the_shape_of_openais_and_usage_if_requested(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        for options in ({}, {"stream_options": {"include_usage": True}}):
            stream = await client.chat.completions.create(
                model="support", messages=HELLO, stream=True, **options
            )
            chunks = [chunk async for chunk in stream]
            if options:
                last = chunks.pop()
                assert last.choices == []
                assert last.usage.completion_tokens > 0
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert voice(deployment, "acme/support") in text
            assert chunks[-1].choices[0].finish_reason == "stop"
            assert all(chunk.usage is None and chunk.model == "support" for chunk in chunks)


async def test_completions_and_several_choices(deployment: Deployment):
    async with deployment.gateway.client("bolt") as client:
        answer = await client.completions.create(model="support", prompt=["Hi", "Ho"], n=2, temperature=0.5)
        assert len(answer.choices) == 4
        stream = await client.completions.create(
            model="support", prompt=["Hi", "Ho"], n=2, temperature=0.5, stream=True
        )
        assert {c.index async for chunk in stream for c in chunk.choices} == {0, 1, 2, 3}
    whole, streamed = await deployment.gateway.usage("bolt")
    assert (whole.prompt_tokens, whole.completion_tokens) == (
        streamed.prompt_tokens,
        streamed.completion_tokens,
    )
    assert whole.n == 2


async def test_foreign_and_unknown_adapters_get_the_same_answer(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        bodies = []
        for model in ("bolt/support", "bolt/nothing", "nothing", "base", "support@v2", "acme/support@v"):
            with pytest.raises(openai.NotFoundError) as caught:
                await client.chat.completions.create(model=model, messages=HELLO)
            bodies.append(caught.value.response.content.replace(model.encode(), b"NAME"))
            assert caught.value.code == "model_not_found"
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve(model)
    assert len(set(bodies)) == 1
    assert deployment.calls() == []


async def test_models_lists_the_models_of_the_key(deployment: Deployment):
    await deployment.gateway.add_tenant("dora", base_access=True)
    async with deployment.gateway.client("acme") as acme, deployment.gateway.client("dora") as dora:
        assert [m.id async for m in await acme.models.list()] == ["acme/support", "support"]
        assert (await acme.models.retrieve("acme/support")).owned_by == "acme"
        assert (await acme.models.retrieve("support@v1")).id == "support@v1"
        assert [m.id async for m in await dora.models.list()] == ["base"]
        raw = await dora.chat.completions.with_raw_response.create(model="base", messages=HELLO)
    assert raw.headers["x-florin-adapter"] == "base"


async def test_each_load_is_charged_to_one_attempt(deployment: Deployment):
    for engine in deployment.engines:
        engine.faults.update({"load_delay": 0.2})

    async def ask(tenant: str) -> None:
        async with deployment.gateway.client(tenant) as client:
            await client.chat.completions.create(model="support", messages=HELLO)

    await asyncio.gather(*(ask(tenant) for tenant in ("acme", "bolt") for _ in range(5)))
    await ask("acme")
    for tenant, count in (("acme", 6), ("bolt", 5)):
        loads = sorted(r.adapter_loads for r in await deployment.gateway.usage(tenant))
        assert loads == [0] * (count - 1) + [1]
    assert len(deployment.loads()) == 2


STREAMS = 500 if LONG else 100


async def test_many_open_streams_on_one_worker(deployment: Deployment):
    for engine in deployment.engines:
        engine.faults.update({"event_delay": 10.0})  # none ends before all are open

    async def one(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(
            model="support", messages=HELLO, stream=True, max_tokens=8
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    tenants = ["acme", "bolt", "corgi"] * 167
    async with contextlib.AsyncExitStack() as stack:
        # One client a tenant, and all the time it takes: a client of each stream's own costs 20 s of CPU.
        clients = {
            tenant: await stack.enter_async_context(deployment.gateway.client(tenant, timeout=150))
            for tenant in tenants[:3]
        }
        streams = asyncio.gather(*(one(clients[tenant]) for tenant in tenants[:STREAMS]))
        await until(lambda: sum(engine.state.in_flight for engine in deployment.engines) == STREAMS)
        for engine in deployment.engines:
            engine.faults.reset()
        texts = await streams
    for tenant, text in zip(tenants, texts, strict=False):
        assert voice(deployment, f"{tenant}/support")[:8] in text


async def test_client_disconnect_frees_the_engine(deployment: Deployment):
    for engine in deployment.engines:
        engine.faults.update({"event_delay": 0.05})
    async with deployment.gateway.client("acme") as client:
        stream = await client.chat.completions.create(
            model="support", messages=HELLO, stream=True, max_tokens=1000
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        (engine,) = [e for e in deployment.engines if e.state.calls]
        await engine.until(lambda state: state.calls[-1].outcome == "aborted")

        request = asyncio.ensure_future(
            client.chat.completions.create(model="support", messages=HELLO, max_tokens=1000)
        )
        await engine.until(lambda state: len(state.calls) == 2)
        request.cancel()
        await engine.until(lambda state: state.calls[-1].outcome == "aborted")
    pool = deployment.gateway.state.pool  # which may hear of it after the engine
    await until(lambda: not any(state.in_flight for state in pool.states()))

    async def recorded() -> list[Any]:
        found = await deployment.gateway.usage("acme")
        return found if len(found) >= 2 else []

    first, second = await until(recorded)
    assert first.outcome == second.outcome == "client_abort"
    assert first.usage_source == "engine_partial"
    assert 1 <= first.completion_tokens < 100


async def test_the_cache_secret_is_rotated_by_a_reload_and_no_request_fails(deployment: Deployment):
    """Every tenant gets another salt, each its own."""
    lifecycle, running = deployment.gateway.state.lifecycle, deployment.gateway.app._running

    async def ask(tenant: str) -> str:
        """What a stream says."""
        async with deployment.gateway.client(tenant) as client:
            stream = await client.chat.completions.create(model="support", messages=HELLO, stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    async def salts() -> list[str]:
        asked = len(deployment.calls())
        answers = await asyncio.gather(ask("acme"), ask("bolt"))
        assert all(answers)
        calls = sorted(deployment.calls(), key=lambda call: call.began)[asked:]
        return sorted(call.body["cache_salt"] for call in calls)

    before = await salts()
    changed = lifecycle.settings.model_copy(update={"cache_secret": "n" * 32, "cache_secret_spread": 0.0})
    under_way = [asyncio.create_task(ask(tenant)) for tenant in ("acme", "bolt") * 8]
    await asyncio.sleep(0)
    running.reconfigure(changed)
    assert all(await asyncio.gather(*under_way))
    after = await salts()
    assert len({*before, *after}) == 4
    running.reconfigure(changed.model_copy(update={"cache_secret": ""}))
    assert await salts() == before  # back to the installation's own
