"""/tokenize and /detokenize by adapter name, over real sockets."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from tests.integration.conftest import Deployment
from tests.integration.test_malformed_answers import outcomes, quiet

TEXT = "When will my order arrive?"


async def post(deployment: Deployment, path: str, tenant: str = "acme", **body: object) -> httpx2.Response:
    async with deployment.gateway.http(deployment.gateway.keys[tenant]) as http:
        return await http.post(path, json={"model": "support", **body})


@pytest.mark.parametrize("root", ["", "/v1"])
async def test_a_text_comes_back_from_its_tokens(deployment: Deployment, root: str):
    there = await post(deployment, f"{root}/tokenize", prompt=TEXT, return_token_strs=True)
    assert there.status_code == 200
    assert there.headers["x-florin-adapter"] == "acme/support@v1"
    tokens = there.json()
    assert (tokens["count"], len(tokens["tokens"]), tokens["max_model_len"]) == (5, 5, 4096)
    assert " ".join(tokens["token_strs"]) == TEXT
    back = await post(deployment, f"{root}/detokenize", tokens=tokens["tokens"])
    assert back.json() == {"prompt": TEXT}


async def test_an_engine_gets_its_own_route_and_the_versions_name_only(deployment: Deployment):
    await post(deployment, "/tokenize", prompt=TEXT, user="u", cache_salt="mine", priority=-1, request_id="x")
    (call,) = deployment.calls()
    version = deployment.gateway.state.catalog.versions["acme/support@v1"]
    assert call.path == "/tokenize"
    assert call.body == {"model": version.engine_name, "prompt": TEXT}


async def test_it_is_recorded_once_and_uses_no_tokens(deployment: Deployment):
    await post(deployment, "/tokenize", prompt=TEXT)
    (record,) = await deployment.gateway.usage("acme")
    assert (record.outcome, record.usage_source, record.billable) == ("ok", "engine_final", True)
    assert (record.prompt_tokens, record.completion_tokens, record.adapter) == (0, 0, "acme/support")


async def test_a_client_that_leaves_owes_nothing(deployment: Deployment):
    await post(deployment, "/tokenize", prompt=TEXT)
    for engine in deployment.engines:
        engine.faults.update({"first_byte_delay": 60.0})
    with pytest.raises(httpx2.TimeoutException):
        async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
            await http.post("/tokenize", json={"model": "support", "prompt": TEXT}, timeout=0.2)
    await quiet(deployment)
    for record in await deployment.gateway.usage("acme"):
        assert (record.prompt_tokens, record.completion_tokens, record.usage_source) == (0, 0, "engine_final")
    assert await outcomes(deployment) == ["client_abort", "ok"]


REFUSED = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": ["a", "b"]}, "prompt"),
    ("/tokenize", {"prompt": 7}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/tokenize", {"messages": [{"role": "user", "content": "b"}], "chat_template": "{{ 1 }}"}, "chat_template"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "1 2"}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [2**40]}, "tokens"),
    ("/detokenize", {"tokens": [True]}, "tokens"),
    ("/detokenize", {"tokens": [[1]]}, "tokens"),
]  # fmt: skip


async def test_rubbish_reaches_no_engine(deployment: Deployment):
    for path, body, param in REFUSED:
        answer = await post(deployment, path, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
    assert deployment.calls() == []


async def test_not_yours_is_not_there(deployment: Deployment):
    for path in ("/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize"):
        body = {"prompt": TEXT} if path.endswith("/tokenize") else {"tokens": [1]}
        foreign = await post(deployment, path, "bolt", **body | {"model": "acme/support"})
        absent = await post(deployment, path, "bolt", **body | {"model": "acme/nothing"})
        assert foreign.status_code == absent.status_code == 404
        assert foreign.text.replace("support", "nothing") == absent.text
    assert deployment.calls() == []


async def test_a_tokens_per_minute_limit_is_not_touched(deployment: Deployment):
    async with deployment.gateway.http() as admin:
        answer = await admin.patch("/admin/v1/tenants/acme", json={"limits": {"tokens_per_minute": 20}})
        assert answer.status_code == 200
    answers = await asyncio.gather(*(post(deployment, "/tokenize", prompt=TEXT * 50) for _ in range(5)))
    assert [answer.status_code for answer in answers] == [200] * 5
