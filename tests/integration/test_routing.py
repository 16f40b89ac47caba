"""Where requests go when engines come, go, fail and forget: over real sockets, with faults as data."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from tests.integration.conftest import EACH_UNLOAD, Deployment
from tests.integration.test_data_plane import HELLO, voice
from tests.support.harness import fake_adapter, running_gateway


async def ask(deployment: Deployment, tenant: str, model: str = "support", **options: object) -> str:
    async with deployment.gateway.client(tenant) as client:
        answer = await client.chat.completions.create(model=model, messages=HELLO, **options)
        return answer.choices[0].message.content


async def stream(deployment: Deployment, tenant: str, model: str = "support", **options: object) -> str:
    async with deployment.gateway.client(tenant) as client:
        events = await client.chat.completions.create(model=model, messages=HELLO, stream=True, **options)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in events])


async def test_one_load_over_two_workers(
    deployment: Deployment, tmp_path: Path, valkey_url: str, prefix: str
):
    for engine in deployment.engines:
        engine.faults.update({"load_delay": 0.3})
    async with running_gateway(tmp_path / "second", valkey_url, prefix) as second:
        second.keys = deployment.gateway.keys
        other = Deployment(second, deployment.a, deployment.b, tmp_path)
        await asyncio.gather(*(ask(t, "acme") for t in (deployment, other) for _ in range(10)))
    assert len(deployment.loads()) == 1


@EACH_UNLOAD
async def test_more_adapters_than_slots_all_get_their_turn(deployment: Deployment, tmp_path: Path):
    """Four adapters, two slots, everything in flight at once: nobody starves, and never a third adapter."""
    await deployment.gateway.set_state("b", "draining")
    await deployment.gateway.add_tenant("dora")
    await deployment.gateway.add_adapter("dora/support", fake_adapter(tmp_path / "dora"))
    deployment.a.faults.update({"event_delay": 0.005})
    tenants = ["acme", "bolt", "corgi", "dora"] * 10
    texts = await asyncio.gather(*(stream(deployment, tenant) for tenant in tenants))
    for tenant, text in zip(tenants, texts, strict=True):
        assert voice(deployment, f"{tenant}/support")[:8] in text
    assert deployment.a.state.max_distinct <= 2
    assert deployment.b.state.calls == type(deployment.b.state.calls)()


FAULTS = {
    "reset": {"stop_at": "headers", "stop_how": "reset"},
    "closed": {"stop_at": "first_event", "stop_how": "close"},
    "error event": {"stop_at": "first_event", "stop_how": "error_event"},
}


@pytest.mark.parametrize(
    ("name", "streamed"), [("reset", False), ("reset", True), ("closed", False), ("error event", True)]
)
async def test_failures_before_the_first_byte_are_hidden_from_the_client(
    deployment: Deployment, name: str, streamed: bool
):
    await ask(deployment, "acme")
    (holder,) = [engine for engine in deployment.engines if engine.state.calls]
    holder.faults.update({**FAULTS[name], "times": 1})
    text = await (stream if streamed else ask)(deployment, "acme")
    assert voice(deployment, "acme/support") in text
    await asyncio.sleep(0.05)
    outcomes = [record.outcome for record in await deployment.gateway.usage("acme")]
    assert sorted(outcomes) == ["failover", "ok", "ok"]


async def test_a_stream_cut_in_the_middle_ends_with_an_error_event(deployment: Deployment):
    """Where no other engine can go on with it (see test_resume)."""
    await ask(deployment, "acme")
    (holder,) = [engine for engine in deployment.engines if engine.state.calls]
    holder.faults.update({"stop_at": "events", "events": 3, "stop_how": "mid_event", "times": 1})
    with pytest.raises(openai.APIError, match="failed before the answer was complete"):
        await stream(deployment, "acme", presence_penalty=0.5)
    await asyncio.sleep(0.05)
    last = (await deployment.gateway.usage("acme"))[-1]
    assert last.outcome == "engine_error"
    assert last.usage_source == "engine_partial"
    assert last.completion_tokens > 0
    assert voice(deployment, "acme/support") in await stream(deployment, "acme")


async def test_an_engine_that_dies_is_left_and_comes_back_with_its_adapters(deployment: Deployment):
    await asyncio.gather(*(ask(deployment, t) for t in ("acme", "bolt", "corgi")))
    before = {e: set(e.state.adapters) for e in deployment.engines}
    assert all(before.values())
    deployment.a.die()
    texts = await asyncio.gather(*(ask(deployment, t) for t in ("acme", "bolt", "corgi") * 4))
    for tenant, text in zip(("acme", "bolt", "corgi") * 4, texts, strict=True):
        assert voice(deployment, f"{tenant}/support") in text
    await deployment.a.revive()
    await deployment.a.until(lambda state: before[deployment.a] <= set(state.adapters))


async def test_forgotten_adapter_is_loaded_again(deployment: Deployment):
    """The placement is wrong for a moment, and that is safe."""
    await ask(deployment, "acme")
    (holder,) = [engine for engine in deployment.engines if engine.state.calls]
    holder.state.forget()
    assert voice(deployment, "acme/support") in await ask(deployment, "acme")


async def test_engine_refusal_is_passed_to_the_client(deployment: Deployment):
    with pytest.raises(openai.BadRequestError) as caught:
        async with deployment.gateway.client("acme") as client:
            await client.completions.create(model="support", prompt="word " * 20_000)
    assert "maximum context length" in caught.value.message
    assert "fl-" not in caught.value.response.text


async def test_without_engines_the_answer_is_clear_and_immediate(gateway, tmp_path: Path):
    await gateway.add_tenant("acme")
    await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "x"))
    async with gateway.client("acme") as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="support", messages=HELLO)
    assert caught.value.code == "no_engine"
    assert caught.value.response.headers["retry-after"]


async def test_draining_takes_no_new_requests_and_cordoned_no_new_adapters(deployment: Deployment):
    await ask(deployment, "acme")
    (holder,) = [n for n, e in (("a", deployment.a), ("b", deployment.b)) if e.state.calls]
    await deployment.gateway.set_state(holder, "cordoned")
    await ask(deployment, "acme")
    assert len(deployment.loads()) == 1
    await deployment.gateway.set_state(holder, "draining")
    await ask(deployment, "acme")
    assert [engine for engine, _ in deployment.loads()][-1] != holder
