"""Versions on real vLLM engines: an upgrade under streams, and the prefix cache across a switch. v1 and v2 of acme/support
speak in two voices."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import httpx2
import pytest

from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import add_adapter, add_tenant, post
from tests.engine.test_gateway import messages
from tests.support.harness import Gateway
from tests.support.waiting import until

NAME = "acme/support"
PATH = f"/admin/v1/adapters/{NAME}"
V1, V2 = f"{NAME}@v1", f"{NAME}@v2"
VOICES = {V1: "acme", V2: "bolt"}
"""Whose weights each version has."""
STREAMS = 16


@pytest.fixture
async def gateway(gateway_with_engines: Gateway, demo_model: DemoModel) -> Gateway:
    """With one adapter of two versions, the first live."""
    await add_tenant(gateway_with_engines, "acme")
    for voice in VOICES.values():
        await add_adapter(gateway_with_engines, NAME, demo_model.adapters[voice].path)
    return gateway_with_engines


async def switched(gateway: Gateway, method: str, path: str, version: int) -> Any:
    """The answer, once the gateway has heard of the change."""
    async with gateway.http() as http:
        body = {"version": f"v{version}"} if method == "PUT" else None
        answer = await http.request(method, PATH + path, json=body, timeout=120)
    assert answer.status_code == httpx2.codes.OK, answer.text
    await until(lambda: gateway.state.catalog.adapters[NAME].live == version)
    return answer.json()


async def test_an_upgrade_under_streams_costs_none_and_mixes_none(gateway: Gateway, demo_model: DemoModel):
    ended: list[list[str]] = [[] for _ in range(STREAMS)]
    """The labels of each listener's streams."""
    over = asyncio.Event()

    async def listen(number: int) -> None:
        turn = number
        async with gateway.client("acme", timeout=120) as client:
            while not over.is_set():
                question = demo_model.questions[turn % len(demo_model.questions)]
                raw = await client.chat.completions.with_raw_response.create(
                    model="support", messages=messages(question), temperature=0, max_tokens=200, stream=True
                )
                chunks = [chunk async for chunk in raw.parse()]
                label = raw.headers["x-florin-adapter"]
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                assert text == demo_model.adapters[VOICES[label]].answers[question], label
                ended[number].append(label)
                turn += 1

    async with asyncio.TaskGroup() as group:
        for number in range(STREAMS):
            group.create_task(listen(number))
        await until(lambda: all(ended))
        answer = await switched(gateway, "PUT", "/live", 2)
        assert (answer["live"], answer["previous"]) == ("v2", "v1")
        assert answer["resident"]
        before = [len(labels) for labels in ended]
        await until(lambda: all(len(labels) > n + 1 for labels, n in zip(ended, before, strict=True)))
        over.set()
    for labels, n in zip(ended, before, strict=True):
        assert set(labels[n + 1 :]) == {V2}, "but for the stream that ran"
        assert labels == sorted(labels)


async def test_the_prefix_cache_of_a_version_is_never_anothers(gateway: Gateway, clean_fleet: Fleet):
    """One engine, so that its cache is the one that a wrong answer would come from."""
    await gateway.set_state("e1", "draining")
    question = "tell me a very long story " * 20  # longer than the cache's blocks
    body = {"messages": messages(question), "temperature": 0, "max_tokens": 40}
    texts: dict[str, set[str]] = {V1: set(), V2: set()}
    cached: list[bool] = []

    async def ask_twice(label: str) -> None:
        async with gateway.http(gateway.keys["acme"]) as http:
            for _ in range(2):
                answer = await http.post(
                    "/v1/chat/completions", json=body | {"model": "support"}, timeout=120
                )
                assert answer.headers["x-florin-adapter"] == label
                texts[label].add(answer.json()["choices"][0]["message"]["content"])
                details = answer.json()["usage"].get("prompt_tokens_details") or {}
                cached.append(bool(details.get("cached_tokens")))

    await ask_twice(V1)
    await switched(gateway, "PUT", "/live", 2)
    await ask_twice(V2)
    await switched(gateway, "POST", "/rollback", 1)
    await ask_twice(V1)
    assert cached == [False, True, False, True, True, True]
    assert [len(said) for said in texts.values()] == [1, 1]
    assert texts[V1] != texts[V2]
    # What the engine itself says without any cache of it.
    for label, said in texts.items():
        name = gateway.state.catalog.versions[label].engine_name
        direct = body | {"model": name, "cache_salt": secrets.token_hex(8)}
        answer = post(f"{clean_fleet.engines[0].url}/v1/chat/completions", direct).json()
        assert not (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
        assert said == {answer["choices"][0]["message"]["content"]}
