"""/v1/messages over real sockets: with Anthropic's client, and as Claude Code sends its requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from loadtests.mock_engine import text
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import voice
from tests.integration.test_malformed_answers import quiet
from tests.integration.test_responses import chat
from tests.support.lazily import ImportedWhenUsed

anthropic = ImportedWhenUsed("anthropic")
PATH = "/v1/messages"
HELLO: Any = [{"role": "user", "content": "Hello"}]
BODY = {"model": "support", "max_tokens": 5, "messages": HELLO}
TOOL: Any = {
    "name": "days_left",
    "description": "Days until it arrives.",
    "input_schema": {"type": "object", "properties": {"product": {"type": "string"}}},
}


@pytest.fixture
async def acme(deployment: Deployment) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Acme's client, which does not retry."""
    async with client_of(deployment, deployment.gateway.keys["acme"]) as client:
        yield client


def client_of(deployment: Deployment, key: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=deployment.gateway.url, api_key=key, max_retries=0)


def said(deployment: Deployment, tokens: int, finish: str = "length") -> str:
    return text(voice(deployment, "acme/support"), tokens, finish)


async def serving(deployment: Deployment, acme: anthropic.AsyncAnthropic) -> Any:
    """The engine that serves acme's adapter."""
    await acme.messages.create(**BODY)
    (engine,) = [engine for engine in deployment.engines if engine.state.calls]
    return engine


async def test_whole_streamed_and_chat_say_the_same_and_count_the_same(
    deployment: Deployment, acme: anthropic.AsyncAnthropic
):
    raw = await acme.messages.with_raw_response.create(
        **BODY, metadata={"user_id": "eve", "tag": "spring"}, system=""
    )
    answer = await raw.parse()
    async with acme.messages.stream(**BODY) as stream:
        words = [word async for word in stream.text_stream]
        final = await stream.get_final_message()
    async with deployment.gateway.client("acme") as openai:
        chatted = await openai.chat.completions.create(model="support", messages=HELLO, max_tokens=5)
    assert "".join(words) == final.content[0].text == answer.content[0].text == said(deployment, 5)
    assert answer.content[0].text == chatted.choices[0].message.content
    assert answer.stop_reason == final.stop_reason == "max_tokens"
    assert answer.model == final.model == "support"
    assert answer.id.startswith("msg_")
    counts = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    assert (counts, answer.usage.output_tokens) == (chatted.usage.prompt_tokens, 5)
    assert final.usage.output_tokens == 5
    assert raw.headers["x-florin-adapter"] == "acme/support@v1"
    assert raw.headers["request-id"] == raw.headers["x-request-id"]
    records = await deployment.gateway.usage("acme")
    assert len({(r.prompt_tokens, r.completion_tokens, r.usage_source, r.outcome) for r in records}) == 1
    assert sorted((r.tag or "", r.end_user or "") for r in records) == [("", ""), ("", ""), ("spring", "eve")]
    assert len({json.dumps(c.body["messages"]) for c in deployment.calls()}) == 1
    assert {c.path for c in deployment.calls()} == {"/v1/chat/completions"}


async def test_tokens_are_counted_as_the_engine_then_counts_them(
    deployment: Deployment, acme: anthropic.AsyncAnthropic
):
    asked: Any = {
        "model": "support",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "When will it arrive?"}]}],
        "system": "Be brief.",
        "tools": [TOOL],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low"},
    }
    counted = await acme.messages.count_tokens(**asked)
    answer = await acme.messages.create(**asked, max_tokens=2)
    assert counted.input_tokens == answer.usage.input_tokens
    count, message = deployment.calls()
    assert count.path == "/tokenize"
    assert count.body["messages"] == message.body["messages"]
    assert count.body["tools"] == message.body["tools"]
    kwargs = {"enable_thinking": True, "thinking": True}
    assert message.body["chat_template_kwargs"] == kwargs
    assert count.body["chat_template_kwargs"] == {"reasoning_effort": "low", **kwargs}
    records = await deployment.gateway.usage("acme")
    assert sorted((r.prompt_tokens, r.completion_tokens, r.outcome) for r in records) == [
        (0, 0, "ok"),
        (counted.input_tokens, 2, "ok"),
    ]


# -- keys, errors, models


async def test_errors_are_the_clients_own(deployment: Deployment, acme: anthropic.AsyncAnthropic):
    async def refused(kind: type[anthropic.APIStatusError], **fields: Any) -> Any:
        with pytest.raises(kind) as caught:
            await acme.messages.create(**BODY | fields)
        body: Any = caught.value.body
        assert body["type"] == "error"
        assert body["request_id"] == caught.value.response.headers["request-id"] == caught.value.request_id
        return body["error"]

    bad = anthropic.BadRequestError
    assert (await refused(bad, messages=[]))["param"] == "messages"
    assert (await refused(bad, max_tokens=0))["type"] == "invalid_request_error"
    server = await refused(bad, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert (server["code"], server["param"]) == ("unsupported_parameter", "tools[0].type")
    assert (await refused(anthropic.NotFoundError, model="nothing"))["type"] == "not_found_error"
    assert deployment.calls() == []
    engine = await serving(deployment, acme)
    message = (
        "max_tokens=9999 cannot be greater than max_model_len=max_total_tokens=512 (parameter=max_tokens)"
    )
    engine.faults.update({"status": 400, "times": 1, "message": message})
    assert (await refused(bad, max_tokens=9999))["code"] == "context_length_exceeded"
    for each in deployment.engines:
        each.faults.update({"status": 500, "times": -1})
    assert (await refused(anthropic.InternalServerError))["type"] == "api_error"


async def test_a_key_may_come_either_way_but_not_two(deployment: Deployment):
    keys = deployment.gateway.keys
    async with httpx2.AsyncClient(base_url=deployment.gateway.url, timeout=30) as http:

        async def ask(path: str = PATH, **headers: str) -> tuple[int, Any]:
            headers = {name.replace("_", "-"): value for name, value in headers.items()}
            answer = await http.post(path, json=BODY, headers=headers)
            body = answer.json()
            return answer.status_code, body.get("error", {}).get("type")

        bearer = f"Bearer {keys['acme']}"
        assert (await ask(x_api_key=keys["acme"]))[0] == 200
        assert (await ask(authorization=bearer))[0] == 200
        assert (await ask(authorization=bearer, x_api_key=keys["acme"]))[0] == 200
        assert (await ask("/v1/chat/completions", x_api_key=keys["acme"]))[0] == 200
        wrong = (401, "authentication_error")
        assert await ask() == wrong
        assert await ask(x_api_key="nonsense") == wrong
        assert await ask(authorization=bearer, x_api_key=keys["bolt"]) == wrong
        assert await ask(authorization=bearer, x_api_key="sk-ant-api03-x") == wrong
        operator = {"x-api-key": deployment.gateway.http().headers["authorization"].removeprefix("Bearer ")}
        for path in ("/admin/v1/tenants", "/finance/v1/costs", "/metrics"):
            assert (await http.get(path, headers=operator)).status_code == 401
    assert len(deployment.calls()) == 4


async def test_whatever_is_asked_of_these_paths_is_answered_in_their_words(deployment: Deployment):
    async with httpx2.AsyncClient(base_url=deployment.gateway.url, timeout=30) as http:
        for method, path, status in (
            ("GET", PATH, 405), ("DELETE", PATH + "/count_tokens", 405), ("POST", PATH + "/batches", 404),
            ("POST", PATH, 401), ("POST", PATH + "/count_tokens", 401),
        ):  # fmt: skip
            answer = await http.request(method, path)
            assert answer.status_code == status
            assert answer.json()["type"] == "error"
            assert answer.json()["request_id"] == answer.headers["request-id"]
        wrong = await http.post("/v1/v1/messages", headers={"anthropic-version": "2023-06-01"})
        assert wrong.json()["type"] == "error"
        assert "Leave /v1 out of the client's base_url" in wrong.json()["error"]["message"]
        assert (await http.get("/v1/models", headers={"x-api-key": "x"})).json()["type"] == "error"
        assert "type" not in (await http.get("/v1/models")).json()


async def test_models_have_the_shape_of_who_asks(deployment: Deployment, acme: anthropic.AsyncAnthropic):
    await deployment.gateway.add_tenant("dora", base_access=True)
    assert [model.id async for model in await acme.models.list()] == ["acme/support", "support"]
    card = await acme.models.retrieve("support@v1")
    assert (card.id, card.type, card.display_name) == ("support@v1", "model", "support@v1")
    assert card.created_at.year > 2020
    async with client_of(deployment, deployment.gateway.keys["dora"]) as dora:
        assert [model.id async for model in await dora.models.list(limit=1)] == ["base"]
        with pytest.raises(anthropic.NotFoundError) as caught:
            await dora.models.retrieve("acme/support")
        absent = await dora.models.with_raw_response.retrieve("base")
    assert b"florin" not in absent.http_response.content
    assert caught.value.body["error"]["code"] == "model_not_found"
    with pytest.raises(anthropic.BadRequestError):
        await acme.models.list(limit=0)
    async with deployment.gateway.client("acme") as openai:
        assert [model.owned_by async for model in await openai.models.list()] == ["acme", "acme"]


async def test_foreign_models_equal_unknown_ones(deployment: Deployment):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        for path in (PATH, PATH + "/count_tokens"):
            shown = set()
            for model in ("bolt/support", "bolt/nothing", "base"):
                answer = await http.post(path, json=BODY | {"model": model})
                assert answer.status_code == 404
                body = answer.content.replace(model.encode(), b"X")
                shown.add(body.replace(answer.headers["request-id"].encode(), b"ID"))
            assert len(shown) == 1
    assert deployment.calls() == []


# -- as Claude Code asks


async def test_claude_codes_requests(deployment: Deployment):
    """The shape of what `claude -p` 2.1.197 sends: headers, fields, and the messages of a second turn."""
    headers = {
        "authorization": f"Bearer {deployment.gateway.keys['acme']}", "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,mid-conversation-system-2026-04-07",
        "x-app": "cli", "x-claude-code-session-id": "s", "user-agent": "claude-cli/2.1.197 (external, sdk-cli)", "anthropic-dangerous-direct-browser-access": "true",
        "x-stainless-lang": "js", "accept": "application/json", "content-type": "application/json",
    }  # fmt: skip
    body = BODY | {
        "max_tokens": 32_000, "stream": True, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": '{"device_id":"0","account_uuid":"","session_id":"s"}'}, "tools": [TOOL],
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.707; cc_entrypoint=sdk-cli;"},
                   {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}],
    }  # fmt: skip
    called = {"type": "tool_use", "id": "chatcmpl-tool-1", "name": "days_left", "input": {"product": "card"}}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    body["messages"] = [
        {"role": "user", "content": [{"type": "text", "text": "Reminder."}, {"type": "text", "text": "How long?"}]},
        {"role": "system", "content": "Agents."},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Look.", "signature": ""}, called]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "chatcmpl-tool-1", "content": [image],
                                      "cache_control": {"type": "ephemeral"}}]},
    ]  # fmt: skip
    async with httpx2.AsyncClient(base_url=deployment.gateway.url, headers=headers, timeout=30) as http:
        answer = await http.post(PATH + "?beta=true", json=body)
        counted = await http.post(
            PATH + "/count_tokens?beta=true", json={"model": "support", "messages": HELLO, "tools": []}
        )
    assert answer.headers["content-type"].startswith("text/event-stream")
    names = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert counted.json()["input_tokens"] > 0
    (sent,) = [call.body for call in deployment.calls() if call.path != "/tokenize"]
    function = {"name": "days_left", "arguments": '{"product":"card"}'}
    calls = [{"id": "chatcmpl-tool-1", "type": "function", "function": function}]
    assert sent["messages"] == [
        {"role": "system", "content": "You are Claude Code."},
        {"role": "user", "content": "Reminder.\nHow long?\nAgents."},
        {"role": "assistant", "content": None, "reasoning": "Look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "chatcmpl-tool-1", "content": ""},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}],
        },
    ]
    assert sent["reasoning_effort"] == "high"


# -- counts of what does not end well


async def test_a_stream_that_breaks_goes_on_elsewhere(deployment: Deployment, acme: anthropic.AsyncAnthropic):
    engine = await serving(deployment, acme)
    engine.faults.update({"stop_at": "events", "stop_how": "reset", "events": 6, "times": 1})
    async with acme.messages.stream(**BODY | {"max_tokens": 100}) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert final.content[0].text == said(deployment, 8, "stop")
    assert final.usage.output_tokens == 8
    assert [kinds.count(kind) for kind in ("message_start", "content_block_start", "message_stop")] == [
        1,
        1,
        1,
    ]
    await quiet(deployment)
    records = await deployment.gateway.usage("acme")
    assert sum(record.completion_tokens for record in records) == 5 + 8


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_cannot_be_translated_goes_elsewhere(
    deployment: Deployment, acme: anthropic.AsyncAnthropic, streamed: bool
):
    engine = await serving(deployment, acme)
    event = {"choices": [{"index": 0, "delta": {"tool_calls": [{}]}, "finish_reason": None}]}
    rubbish = {"rubbish": json.dumps(event), "events": 0, "times": 1}
    engine.faults.update(rubbish if streamed else chat(role="assistant", content=["no text"]))
    if streamed:
        async with acme.messages.stream(**BODY) as stream:
            answer = await stream.get_final_message()
    else:
        answer = await acme.messages.create(**BODY)
    assert answer.content[0].text == said(deployment, 5)
    await quiet(deployment)
    assert sorted(r.outcome for r in await deployment.gateway.usage("acme")) == ["failover", "ok", "ok"]
