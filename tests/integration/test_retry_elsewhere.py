"""Engines that go on failing, not just once: whoever can still serve does, and the client sees none of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import openai
import pytest

from adapters.store.protocol.placement import Touch
from adapters.store.protocol.registry import Change
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import voice
from tests.integration.test_routing import ask, stream
from tests.support.harness import running_gateway
from tests.support.waiting import until


def holder_of(deployment: Deployment) -> tuple[str, object]:
    ((name, engine),) = [(n, e) for n, e in (("a", deployment.a), ("b", deployment.b)) if e.state.calls]
    return name, engine


@pytest.mark.parametrize(
    ("fault", "streamed"),
    [({"status": 500}, False), ({"status": 503}, True), ({"abort": True}, True)],
    ids=str,
)
async def test_only_holder_fails_permanently(deployment: Deployment, fault: dict, streamed: bool):
    """`/health` may go on saying 200 all the while, as a draining vLLM's does."""
    await ask(deployment, "acme")
    _, engine = holder_of(deployment)
    engine.faults.update(fault)
    assert voice(deployment, "acme/support") in await (stream if streamed else ask)(deployment, "acme")


async def test_aborted_stream_in_one_piece_is_retried_elsewhere(deployment: Deployment):
    await ask(deployment, "acme")
    _, engine = holder_of(deployment)
    engine.faults.update({"abort": True, "merge": 50, "times": 1})
    assert voice(deployment, "acme/support") in await stream(deployment, "acme")


async def test_half_removed_engine_delays_nothing(deployment: Deployment):
    """The gateway died, or lost Redis, between forgetting the engine and forgetting its placement."""
    await ask(deployment, "acme")
    name, _ = holder_of(deployment)
    await deployment.gateway.commit(Change("engine", name, None))
    assert voice(deployment, "acme/support") in await ask(deployment, "acme")


async def test_a_whole_answer_may_take_longer_than_a_silence_within_one(
    tmp_path, valkey_url, prefix, deployment
):
    async with running_gateway(tmp_path / "second", valkey_url, prefix, engine_idle_timeout=0.5) as second:
        second.keys = deployment.gateway.keys
        for engine in deployment.engines:
            engine.faults.update({"first_byte_delay": 1.2})
        text = await ask(Deployment(second, deployment.a, deployment.b, tmp_path), "acme")
    assert voice(deployment, "acme/support") in text
    assert len(deployment.calls()) == 1


async def test_engine_names_in_errors_are_hidden_from_clients(deployment: Deployment):
    """A load that ends in confusion tells the client nothing of URLs and other tenants' names."""
    for engine in deployment.engines:
        engine._routes["GET", "/v1/models"] = lambda connection, _: connection.answer(200, b"[]")
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(deployment, "acme")
    assert caught.value.code == "load_failed"
    assert "127.0.0.1" not in caught.value.response.text


async def test_leases_are_still_reported_after_an_exception(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
):
    store = deployment.gateway.state.store
    touch, told, stumbled = store.touch, asyncio.Event(), asyncio.Event()

    async def stumble(worker: str, touches: list[Touch], **how: Any) -> Any:
        if not stumbled.is_set():
            stumbled.set()
            raise RuntimeError("a defect")
        others = await touch(worker, touches, **how)
        if any(use.in_flight for use in touches):
            told.set()
        return others

    await ask(deployment, "acme")
    _, engine = holder_of(deployment)
    async with (
        deployment.gateway.http() as http
    ):  # else a second engine might load it, which reports leases first
        await http.put("/admin/v1/adapters/acme/support/replicas", json={"max_replicas": 1})
    engine.faults.update({"event_delay": 0.5})
    monkeypatch.setattr(type(store), "touch", staticmethod(stumble))
    endless = {"max_tokens": 1000, "extra_body": {"ignore_eos": True}}
    task = asyncio.ensure_future(stream(deployment, "acme", **endless))
    await until(lambda: told.is_set() or task.done())
    assert stumbled.is_set()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_role_event_alone_does_not_count_as_an_answer(deployment: Deployment):
    await ask(deployment, "acme")
    _, engine = holder_of(deployment)
    engine.faults.update({"stop_at": "events", "events": 1, "times": 1})
    assert voice(deployment, "acme/support") in await stream(deployment, "acme")
