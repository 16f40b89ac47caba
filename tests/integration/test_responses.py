"""/v1/responses over real sockets, with the official client."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest
from pydantic import BaseModel

from adapters.store.protocol.registry import Change
from gateway.tenants import directory
from gateway.tenants.terms import Limits
from loadtests.mock_engine import text
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import voice
from tests.support.waiting import until

PATH = "/v1/responses"
HELLO = [{"role": "user", "content": "Hello"}]


class Arrival(BaseModel):
    days: int
    product: str


def said(deployment: Deployment, tokens: int, finish: str = "length", adapter: str = "acme/support") -> str:
    return text(voice(deployment, adapter), tokens, finish)


def chat(**message: Any) -> dict[str, Any]:
    """A chat's answer, for a mock engine to say, which once was something else."""
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {"rubbish": json.dumps({"id": "x", "choices": [choice], "usage": usage}), "times": 1}


async def test_whole_streamed_and_chat_say_the_same_and_count_the_same(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        raw = await client.responses.with_raw_response.create(
            model="support", input="Hello", max_output_tokens=5, metadata={"tag": "spring"}
        )
        answer = raw.parse()
        events = [
            event
            async for event in await client.responses.create(
                model="support", input=HELLO, max_output_tokens=5, stream=True, user="eve"
            )
        ]
        chatted = await client.chat.completions.create(model="support", messages=HELLO, max_tokens=5)
    assert raw.headers["x-florin-adapter"] == "acme/support@v1"
    last = events[-1].response
    assert answer.output_text == last.output_text == chatted.choices[0].message.content == said(deployment, 5)
    assert answer.status == last.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.model == last.model == "support"
    assert answer.metadata == {"tag": "spring"}
    assert answer.usage == last.usage
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (chatted.usage.prompt_tokens, 5)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer.output_text
    records = await deployment.gateway.usage("acme")
    assert len({(r.prompt_tokens, r.completion_tokens, r.usage_source, r.outcome) for r in records}) == 1
    assert sorted((r.tag or "", r.end_user or "") for r in records) == [("", ""), ("", "eve"), ("spring", "")]
    assert len({json.dumps(c.body["messages"]) for c in deployment.calls()}) == 1
    assert {c.path for c in deployment.calls()} == {"/v1/chat/completions"}


async def test_the_clients_helpers(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        async with client.responses.stream(model="support", input="Hello") as stream:
            snapshots = [
                event.snapshot async for event in stream if event.type == "response.output_text.delta"
            ]
            final = await stream.get_final_response()
        assert snapshots[-1] == final.output_text == said(deployment, 8, "stop")
        assert final.status == "completed"
        (engine,) = [engine for engine in deployment.engines if engine.state.calls]
        engine.faults.update(chat(role="assistant", content='{"days": 3, "product": "card"}'))
        parsed = await client.responses.parse(model="support", input="When?", text_format=Arrival)
        assert parsed.output_parsed == Arrival(days=3, product="card")
    *_, sent = [call.body for call in engine.state.calls]
    assert sent["response_format"]["json_schema"]["schema"]["required"] == ["days", "product"]
    assert sent["response_format"]["json_schema"]["name"] == "Arrival"


# -- what is refused


async def test_errors_are_the_clients_own_with_its_own_names(deployment: Deployment):
    async with deployment.gateway.client("acme", max_retries=0) as client:

        async def refused(kind: type[openai.APIStatusError] = openai.BadRequestError, **fields: Any) -> Any:
            with pytest.raises(kind) as caught:
                await client.responses.create(**({"model": "support", "input": "Hello"} | fields))
            return caught.value

        assert (await refused(input=[])).param == "input"
        assert (
            await refused(input=[{"role": "user", "content": [{"type": "x"}]}])
        ).param == "input[0].content[0]"
        assert (await refused(max_output_tokens=0)).param == "max_output_tokens"
        stored = await refused(previous_response_id="resp_1")
        assert (stored.code, stored.param) == ("unsupported_parameter", "previous_response_id")
        assert "send the conversation's items again as `input`" in stored.message
        assert (await refused(tools=[{"type": "web_search"}])).param == "tools[0].type"
        assert (await refused(openai.NotFoundError, model="nothing")).code == "model_not_found"
        assert (await refused(extra_body={"min_tokens": 9}, max_output_tokens=5)).message.count(
            "max_output_tokens"
        )
        assert deployment.calls() == []

        await client.responses.create(model="support", input="Hello")
        (engine,) = [engine for engine in deployment.engines if engine.state.calls]
        engine.faults.update({"status": 400, "times": 1, "message": (
            "max_tokens=9999 cannot be greater than max_model_len=max_total_tokens=512 (parameter=max_tokens)"
        )})  # fmt: skip
        long = await refused(max_output_tokens=9999)
        assert (long.code, long.param) == ("context_length_exceeded", "max_output_tokens")
        assert long.message.count("`max_output_tokens` is 9999")


async def test_foreign_models_and_ids_equal_unknown_ones(deployment: Deployment):
    key = deployment.gateway.keys["acme"]
    async with (
        deployment.gateway.http(key) as acme,
        deployment.gateway.http(deployment.gateway.keys["bolt"]) as bolt,
    ):
        made = (await acme.post(PATH, json={"model": "support", "input": "Hello"})).json()["id"]
        for ask in ("", "/cancel", "/input_items"):
            for method in ("GET", "POST", "DELETE"):
                answers = [
                    await http.request(method, f"{PATH}/{name}{ask}")
                    for http, name in ((acme, made), (bolt, made), (bolt, "resp_0"))
                ]
                shown = {a.content.replace(made.encode(), b"X").replace(b"resp_0", b"X") for a in answers}
                assert {a.status_code for a in answers} == {404}
                assert len(shown) == 1
                assert answers[0].json()["error"]["code"] == "not_found"
        foreign, unknown = [
            (await acme.post(PATH, json={"model": model, "input": "Hello"})).content.replace(
                model.encode(), b"X"
            )
            for model in ("bolt/support", "bolt/nothing")
        ]
        assert foreign == unknown
        assert (await acme.get(PATH)).status_code == 405


# -- what does not end well


async def test_limits_hold_for_what_was_translated(deployment: Deployment):
    acme = replace(
        deployment.gateway.state.directory.tenants["acme"], limits=Limits(max_output=5, max_context=500)
    )
    await deployment.gateway.commit(Change("tenant", "acme", directory.dump(acme)))
    await until(lambda: deployment.gateway.state.directory.tenants["acme"] == acme)
    async with deployment.gateway.client("acme", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="support", input="Hello", max_output_tokens=6)
        assert (caught.value.code, caught.value.param) == ("max_output_exceeded", "max_output_tokens")
        answer = await client.responses.create(model="support", input="Hello")
        assert (answer.status, answer.usage.output_tokens) == ("incomplete", 5)
        assert answer.max_output_tokens is None
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="support", input="word " * 1000)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


# -- as Codex asks


async def test_codexs_requests(deployment: Deployment):
    """The shape of what `codex exec` 0.169 sends: headers, fields, tools, and the items of a second turn."""
    headers = {
        "authorization": f"Bearer {deployment.gateway.keys['acme']}", "accept": "text/event-stream",
        "originator": "codex_exec", "user-agent": "codex_exec/0.169.0", "session-id": "s", "thread-id": "s",
        "x-client-request-id": "s", "x-codex-beta-features": "remote_compaction_v2", "x-codex-window-id": "s:0",
        "x-codex-turn-metadata": '{"session_id":"s"}',
    }  # fmt: skip
    schema = {"type": "object", "properties": {"target": {"type": "string"}}, "additionalProperties": False}
    function = {
        "type": "function",
        "name": "run",
        "description": "Runs.",
        "strict": False,
        "parameters": schema,
    }
    agents = {
        "type": "namespace",
        "name": "agents",
        "description": "Helpers.",
        "tools": [function | {"name": "close"}],
    }
    parts = [{"type": "input_text", "text": text} for text in ("Skills.", "Permissions.")]
    asked = [
        {
            "type": "message",
            "id": "msg_1",
            "role": "developer",
            "content": [parts[0] | {"text": "You code."}],
        },
        {"type": "message", "id": "msg_2", "role": "developer", "content": parts},
        {"type": "message", "id": "msg_3", "role": "user", "content": [parts[0] | {"text": "Close it."}]},
    ]
    body = {
        "model": "support", "stream": True, "tools": [function, agents], "tool_choice": "auto", "store": False,
        "parallel_tool_calls": True, "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "s", "client_metadata": {"session_id": "s", "x-codex-window-id": "s:0"},
    }  # fmt: skip
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "agents__close", "arguments": '{"target": "a"}'},
    }
    said = {"role": "assistant", "content": None, "reasoning": "Look.", "tool_calls": [call]}
    async with httpx2.AsyncClient(base_url=deployment.gateway.url, headers=headers, timeout=30) as http:
        await http.post(PATH, json=body | {"input": asked})
        (engine,) = [engine for engine in deployment.engines if engine.state.calls]
        engine.faults.update(chat(**said))
        first = (await http.post(PATH, json=body | {"input": asked, "stream": False})).json()
        thought, called = first["output"]
        assert (called["namespace"], called["name"]) == ("agents", "close")
        # What Codex sends back has no `status` on its reasoning, and ids of its own.
        del thought["status"]
        result = {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "Closed."}
        second = await http.post(PATH, json=body | {"input": [*asked, thought, called, result]})
    names = [line.removeprefix("event: ") for line in second.text.splitlines() if line.startswith("event: ")]
    assert (names[0], names[-1]) == ("response.created", "response.completed")
    *_, sent = [call.body for call in engine.state.calls]
    assert sent["messages"] == [
        {"role": "system", "content": "You code.\n\nSkills.\n\nPermissions."},
        {"role": "user", "content": "Close it."},
        said,
        {"role": "tool", "tool_call_id": "call_1", "content": "Closed."},
    ]
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["run", "agents__close"]
