"""A first token after a long silence, through load balancers that close silent connections.

Source: litellm #34819, vllm PR 51034
Sent: streamed chats, Responses and Messages to an engine that says nothing for longer than 15 s (here: 0.05 s), since it
 reads a long prompt, hangs, or answers another; also one whose engine dies then, and one whose client leaves.
Right: 200 and the headers that are known by then, then `: keep-alive` again and again, or `ping` on `/v1/messages`. The
 clients of OpenAI and Anthropic see nothing of it; retries go on unseen; an error is an event that they raise; a client
 that leaves frees the engine at once; every attempt has its record. What fails before 15 s keeps its own status.
Why: ALB, nginx and HAProxy give up after 50 to 60 s without a byte, and the answer that the engine works on is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from loadtests.mock_engine import MockEngine
from tests.integration.conftest import Deployment
from tests.integration.test_malformed_answers import outcomes, quiet
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.lazily import ImportedWhenUsed
from tests.support.waiting import until

anthropic = ImportedWhenUsed("anthropic")
HELLO: Any = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "support", "messages": HELLO, "max_tokens": 5, "stream": True}


@pytest.fixture
async def impatient(tmp_path: Path, valkey_url: str, prefix: str) -> AsyncIterator[Gateway]:
    """A gateway whose streams are never silent for long."""
    settings = {"keep_alive_interval": 0.05, "hang_timeout": 600.0}
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway:
        yield gateway


@pytest.fixture
async def deployment(impatient: Gateway, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Engine `a` holds the adapter; its core is stopped, so that it says nothing."""
    async with MockEngine() as a, MockEngine() as b:
        await impatient.add_engine("a", a.url)
        await impatient.add_tenant("acme")
        await impatient.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        async with impatient.client("acme") as client:
            await client.chat.completions.create(**CHAT | {"stream": False})
        a.stop_core()
        yield Deployment(impatient, a, b, tmp_path)


async def silent(deployment: Deployment, count: int = 1) -> None:
    """Until so many responses have begun without an answer."""
    streams = deployment.gateway.state.lifecycle.keep_alives._streams
    await until(lambda: sum(exchange.started for exchange in streams) >= count)


async def test_clients_do_not_notice(deployment: Deployment):
    gateway = deployment.gateway

    async def chat() -> str:
        async with gateway.client("acme") as client:
            events = await client.chat.completions.create(**CHAT)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in events])

    async def response() -> str:
        async with gateway.client("acme") as client:
            events = await client.responses.create(
                model="support", input="Hello", max_output_tokens=5, stream=True
            )
            return "".join([e.delta async for e in events if e.type == "response.output_text.delta"])

    async def message() -> str:
        async with (
            anthropic.AsyncAnthropic(
                base_url=gateway.url, api_key=gateway.keys["acme"], max_retries=0
            ) as client,
            client.messages.stream(model="support", messages=HELLO, max_tokens=5) as stream,
        ):
            return (await stream.get_final_message()).content[0].text

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call()) for call in (chat, response, message)]
        await silent(deployment, 3)
        deployment.a.core.resume()
    texts = [task.result() for task in tasks]
    assert texts[0]
    assert len(set(texts)) == 1
    await quiet(deployment)
    records = await gateway.usage("acme")
    assert {(record.outcome, record.usage_source, record.completion_tokens) for record in records} == {
        ("ok", "engine_final", 5)
    }


@pytest.mark.parametrize(
    ("path", "comment"),
    [
        ("/v1/chat/completions", b": keep-alive\n\n"),
        ("/v1/messages", b'event: ping\ndata: {"type":"ping"}\n\n'),
    ],
)
async def test_what_is_sent_meanwhile(deployment: Deployment, path: str, comment: bytes):
    """The headers name no engine: another may answer, as it does here."""
    gateway = deployment.gateway
    async with (
        gateway.http(gateway.keys["acme"]) as client,
        client.stream("POST", path, json=CHAT) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-request-id"]
        assert answer.headers["x-florin-adapter"] == "acme/support@v1"
        assert "x-florin-engine" not in answer.headers
        body = b""
        events = answer.aiter_bytes()
        while body.count(comment) < 3:
            body += await anext(events)
        assert body.replace(comment, b"") == b""
        await gateway.add_engine("b", deployment.b.url)
        deployment.a.die()
        body += b"".join([part async for part in events])
    assert body.count(b"HTTP/1.1") == 0
    assert body.endswith((b"data: [DONE]\n\n", b'data: {"type":"message_stop"}\n\n'))
    await quiet(deployment)
    assert await outcomes(deployment) == ["failover", "ok", "ok"]


async def test_an_error_is_an_event_then_and_has_its_status_before(deployment: Deployment):
    gateway = deployment.gateway
    deployment.a.faults.update({"rubbish": '{"error": {"message": "Too long.", "code": 400}}', "events": 0})
    async with gateway.client("acme") as client:
        opening = asyncio.create_task(client.chat.completions.create(**CHAT))
        await silent(deployment)
        events = await opening
        deployment.a.core.resume()
        with pytest.raises(openai.APIError) as late:
            await anext(events)
        gateway.state.lifecycle.keep_alives.interval = 15.0
        with pytest.raises(openai.BadRequestError) as early:
            await client.chat.completions.create(**CHAT)
    assert not isinstance(late.value, openai.APIStatusError)
    assert late.value.code == early.value.code == "request_refused"


async def test_a_client_that_leaves_meanwhile_frees_the_engine(deployment: Deployment):
    gateway = deployment.gateway
    async with gateway.http(gateway.keys["acme"]) as client:
        call = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await silent(deployment)
        call.cancel()
        with pytest.raises((asyncio.CancelledError, httpx2.HTTPError)):
            await call
    await quiet(deployment)  # though the engine never answers
    assert await outcomes(deployment) == ["client_abort", "ok"]
