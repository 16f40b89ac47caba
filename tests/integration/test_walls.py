"""What a tenant's own policy and cache group change, and which engines score prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx2
import pytest

from adapters.model import Engine
from adapters.store.protocol.registry import Change
from gateway.tenants import directory
from gateway.tenants.terms import RequestPolicy
from loadtests.mock_engine import MockEngine
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO
from tests.support.harness import Gateway
from tests.support.waiting import until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


async def change(gateway: Gateway, tenant: str, **fields: Any) -> None:
    new = replace(gateway.state.directory.tenants[tenant], **fields)
    await gateway.commit(Change("tenant", tenant, directory.dump(new)))


async def post(gateway: Gateway, tenant: str, path: str = CHAT, **fields: Any) -> httpx2.Response:
    body = {"model": "support", **({"messages": HELLO} if path == CHAT else {"prompt": "Hi"})}
    async with gateway.http(gateway.keys[tenant]) as http:
        return await http.post(path, json=body | fields)


def code(answer: httpx2.Response) -> str:
    return "" if answer.status_code == 200 else answer.json()["error"]["code"]


LOOK = [
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "https://cdn.example.com/a.png"}}],
    }
]


@pytest.mark.parametrize(
    ("policy", "asked", "for_all", "for_acme"),
    [
        (RequestPolicy(media_hosts=("cdn.example.com",)), {"messages": LOOK}, "media_not_allowed", ""),
        (RequestPolicy(chat_templates=True), {"chat_template": "{{ 1 }}"}, "unsupported_parameter", ""),
        (RequestPolicy(structured_outputs=False), {"structured_outputs": {"choice": ["a"]}}, "", "unsupported_parameter"),
        (RequestPolicy(pass_fields=("structured_outputs.grammar",)), {"structured_outputs": {"grammar": "root ::= 'a'"}},
         "unsupported_parameter", ""),
    ],
)  # fmt: skip
async def test_a_tenants_own_policy(
    deployment: Deployment, policy: RequestPolicy, asked: dict[str, Any], for_all: str, for_acme: str
):
    gateway = deployment.gateway
    for tenant in ("acme", "bolt"):
        assert code(await post(gateway, tenant, **asked)) == for_all
    await change(gateway, "acme", policy=policy)
    assert code(await post(gateway, "acme", **asked)) == for_acme
    assert code(await post(gateway, "bolt", **asked)) == for_all
    await change(gateway, "acme", policy=RequestPolicy())
    assert code(await post(gateway, "acme", **asked)) == for_all


async def test_a_cache_group_shares_a_salt_and_nobody_else_does(deployment: Deployment):
    gateway = deployment.gateway
    for tenant in ("acme", "bolt", "corgi"):
        await change(gateway, tenant, base_access=True)

    async def salts() -> list[str]:
        for tenant in ("acme", "bolt", "corgi"):
            assert code(await post(gateway, tenant, model="base")) == ""
        return [call.body["cache_salt"] for call in sorted(deployment.calls(), key=lambda c: c.began)][-3:]

    alone = await salts()
    assert len(set(alone)) == 3
    await change(gateway, "acme", cache_group="corgi")  # a tenant's name, which is no group's
    await change(gateway, "bolt", cache_group="corgi")
    acme, bolt, corgi = await salts()
    assert acme == bolt != corgi == alone[2]
    assert acme not in alone
    await change(gateway, "acme", cache_group="")
    assert await salts() == [alone[0], bolt, corgi]


SCORED = (
    (CHAT, {"prompt_logprobs": 1}), (CHAT, {"echo": True}),
    (TEXT, {"prompt_logprobs": 0}), (TEXT, {"echo": True, "logprobs": 1}),
)  # fmt: skip


async def register(gateway: Gateway, name: str, engine: MockEngine, **fields: Any) -> dict[str, Any]:
    fields = {"gpu_type": "h100", "slots": 2, "max_rank": 8} | fields
    async with gateway.http() as http:
        answer = await http.post(
            "/admin/v1/engines", json={"name": name, "url": engine.url, "base": "base", **fields}
        )
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def test_prompts_are_scored_by_engines_that_are_safe_and_by_no_others(deployment: Deployment):
    gateway = deployment.gateway
    for path, asked in SCORED:
        answer = await post(gateway, "acme", path, **asked)
        assert (answer.status_code, code(answer)) == (400, "unsupported_parameter")
        assert "no engine of this model is known to be safe" in answer.text
        assert answer.json()["error"]["param"] in asked
    assert deployment.calls() == []
    async with MockEngine(version="0.33.0") as safe:
        shown = await register(gateway, "safe", safe)
        assert (shown["version"], shown["prompt_scores"]) == ("0.33.0", "safe")
        tried = len(safe.state.calls)
        assert tried >= 4
        for path, asked in SCORED * 3:
            answer = await post(gateway, "acme", path, **asked)
            assert (answer.status_code, answer.headers["x-florin-engine"]) == (200, "safe"), answer.text
        assert deployment.calls() == []
        sent = [call.body for call in list(safe.state.calls)[tried:]]
        assert [{k: b[k] for k in ("prompt_logprobs", "echo", "logprobs") if k in b} for b in sent] == [
            asked for _, asked in SCORED * 3
        ]
        answer = await post(gateway, "acme", TEXT, prompt="x" * 4 * 5000, prompt_logprobs=0)
        assert (answer.status_code, code(answer)) == (400, "invalid_value")
        assert "4,096 tokens" in answer.text


async def test_another_process_at_the_same_address_is_not_known_to_be_safe(gateway: Gateway):
    async with MockEngine(version="0.33.0") as engine:
        await gateway.add_tenant("acme", base_access=True)
        first = await register(gateway, "a", engine)
        assert (first["prompt_scores"], first["unloads"]) == ("safe", "unknown")
        assert (await post(gateway, "acme", model="base", prompt_logprobs=1)).status_code == 200
        await gateway.state.engine_client.learned(gateway.state.catalog.engines["a"], "refuses")
        assert (await register(gateway, "a", engine))["unloads"] == "refuses"
        engine.die()
        await engine.revive()
        engine.state.started += 60

        async def refused() -> bool:
            return (await post(gateway, "acme", model="base", prompt_logprobs=1)).status_code == 400

        await until(refused)
        again = await register(gateway, "a", engine)
        assert (again["prompt_scores"], again["unloads"]) == ("safe", "unknown")
        assert (await post(gateway, "acme", model="base", prompt_logprobs=1)).status_code == 200


async def test_an_engine_that_dies_of_the_probe_is_not_tried_again(gateway: Gateway):
    async with (
        MockEngine(version="0.33.0", answer_tokens=50) as engine,
        MockEngine(version="0.33.0") as other,
    ):
        engine.faults.scores_kill, engine.faults.event_delay = True, 0.02
        shown = await register(gateway, "a", engine)
        assert (shown["version"], shown["prompt_scores"]) == ("0.33.0", "unsafe")
        assert not engine.alive
        await engine.revive()
        tried = len(engine.state.calls)
        assert (await register(gateway, "a", engine))["prompt_scores"] == "unsafe"
        assert (await register(gateway, "b", other))["prompt_scores"] == "unsafe"
        assert len(engine.state.calls) == tried
        assert not other.state.calls
    async with MockEngine(version="0.33.0") as other_kind:
        assert (await register(gateway, "c", other_kind, gpu_type="l40s"))["prompt_scores"] == "safe"


async def test_a_serving_engine_is_not_tried(gateway: Gateway):
    async with MockEngine(version="0.33.0") as engine:
        engine.faults.waiting = 1
        assert (await register(gateway, "a", engine))["prompt_scores"] == "unknown"
        assert not engine.state.calls
        engine.faults.waiting = 0
        assert (await register(gateway, "a", engine))["prompt_scores"] == "safe"
        tried = len(engine.state.calls)
        assert (await register(gateway, "a", engine))["prompt_scores"] == "safe"  # the same process
        assert len(engine.state.calls) == tried
        known: Engine = gateway.state.catalog.engines["a"]
        assert known.started
