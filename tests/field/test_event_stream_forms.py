"""Event streams that are valid, and not written as vLLM writes them.

Source: a survey of clients; litellm #36168
Sent: an engine's answer with CR LF or CR instead of LF, with `data:` without a space, with `event:` before it, with comments
 between events and within them, with several lines of data, after a byte order mark, without its last blank line, and
 with usage in the last event that has choices. And JSON without `data:`.
Right: every client, of each API, gets the same text and usage as from vLLM, and the record is exact, cached tokens
 included. What is no event stream is retried elsewhere.
Why: text was lost with status 200 where comments had other ends of lines, and engines were suspected that did nothing wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from loadtests.mock_engine.generation import Generation
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import voice
from tests.integration.test_malformed_answers import quiet
from tests.integration.test_routing import ask

Form = Callable[[bytes], bytes]
HELLO: Any = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "support", "messages": HELLO, "max_tokens": 5, "stream": True}


def lines(data: bytes) -> bytes:
    """Its JSON over several lines."""
    chunk = orjson.loads(data[6:-2]) if data.startswith(b"data: {") else None
    if chunk is None:
        return data
    indented = orjson.dumps(chunk, option=orjson.OPT_INDENT_2)
    return b"data: " + indented.replace(b"\n", b"\ndata: ") + b"\n\n"


def usage_with_the_last_choice(data: bytes) -> bytes:
    """Nowhere else: neither running counts nor an event of its own."""
    if b'"choices":[]' in data:
        return b""
    if b'"finish_reason":null' in data:
        return re.sub(rb',"usage":\{.*\}\}\n\n$', b"}\n\n", data)
    cached = b'"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens":5,'
    return re.sub(rb'"usage":\{.*?("total_tokens":\d+).*\}\}\n\n$', rb'"usage":{%b\1}}\n\n' % cached, data)


FORMS: dict[str, Form] = {
    "CR LF": lambda data: data.replace(b"\n", b"\r\n"),
    "CR": lambda data: data.replace(b"\n", b"\r"),
    "no space": lambda data: data.replace(b"data: ", b"data:"),
    "event first": lambda data: data.replace(b"data: ", b"event: message\ndata: "),
    "comments with CR LF": lambda data: data + b": keep-alive\r\n\r\n",
    "comments within": lambda data: b": one\n" + data[:-1] + b": two\nid: 3\n\n",
    "several lines": lines,
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + data if b'"role"' in data else data,
    "no last blank line": lambda data: data.removesuffix(b"\n\n") if b"[DONE]" in data else data,
    "usage with the last choice": usage_with_the_last_choice,
}


def write_as(monkeypatch: pytest.MonkeyPatch, form: Form) -> None:
    """Engines write each of their events in this form."""
    send = Generation._send

    def formed(self: Generation, data: bytes, *, last: bool = False) -> None:
        send(self, form(data) or b": nothing\n\n", last=last)

    monkeypatch.setattr(Generation, "_send", formed)


async def answers(deployment: Deployment) -> dict[str, tuple[str, int]]:
    """By API: the text and its tokens, as clients see them."""
    gateway = deployment.gateway
    async with gateway.client("acme") as client, gateway.http(gateway.keys["acme"]) as http:
        events = await client.chat.completions.create(**CHAT, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in events]
        chat = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        made = await client.completions.create(model="support", prompt="Hello", max_tokens=5, stream=True)
        completion = "".join([chunk.choices[0].text async for chunk in made])
        messages = (await http.post("/v1/messages", json=CHAT)).text
    deltas = [orjson.loads(line[6:]) for line in messages.split("\n") if line.startswith("data: ")]
    message = "".join(d["delta"].get("text", "") for d in deltas if d["type"] == "content_block_delta")
    (counts,) = [d["usage"] for d in deltas if d["type"] == "message_delta"]
    return {
        "chat": (chat, chunks[-1].usage.completion_tokens),
        "completions": (completion, 5),
        "messages": (message, counts["output_tokens"]),
    }


async def test_all_are_read(deployment: Deployment, monkeypatch: pytest.MonkeyPatch):
    await ask(deployment, "acme", max_tokens=5)
    expected = await answers(deployment)
    assert voice(deployment, "acme/support") in expected["chat"][0]
    seen = {}
    for name, form in FORMS.items():
        with monkeypatch.context() as patch:
            write_as(patch, form)
            seen[name] = await answers(deployment)
    assert seen == dict.fromkeys(FORMS, expected)
    await quiet(deployment)
    records = await deployment.gateway.usage("acme")
    assert {(r.outcome, r.usage_source, r.completion_tokens) for r in records} == {("ok", "engine_final", 5)}
    assert {r.cached_tokens for r in records[-3:]} == {4}, "of the last form"
    assert not [state.engine.name for state in deployment.gateway.state.pool.states() if state.suspect]


async def test_what_is_none_is_retried_elsewhere(deployment: Deployment, monkeypatch: pytest.MonkeyPatch):
    await ask(deployment, "acme", max_tokens=5)
    expected = (await answers(deployment))["chat"]
    lines = iter([b'{"error": {"message": "Internal failure"}}\n\n'])
    with monkeypatch.context() as patch:
        write_as(patch, lambda data: next(lines, data))
        assert (await answers(deployment))["chat"] == expected
    await quiet(deployment)
    outcomes = [record.outcome for record in await deployment.gateway.usage("acme")]
    assert sorted(outcomes) == ["failover", *["ok"] * 7]
