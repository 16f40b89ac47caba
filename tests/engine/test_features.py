"""What else a chat can have reaches the client as the engine sends it: tools, structured outputs, log
probabilities, the developer's role. Each request is made through Florin and to the engine itself."""

from __future__ import annotations

import json
from typing import Any

import httpx2

from deploy.demo.engines import Fleet
from tests.engine.conftest import loaded
from tests.support.harness import Gateway

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "strict": True,  # otherwise 0.32 accepts any JSON
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Bern", "Basel"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""A PNG file of one red pixel."""
CALLED = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "Bern"\}\}\n</tool_call>'
"""A call as the demo engines' parser reads it; the tiny model has to be made to write it."""
CITIES = ({"city": "Bern"}, {"city": "Basel"})
ASKED = [{"role": "user", "content": "What is the weather in Bern?"}]
TICKET = {
    "type": "object",
    "properties": {"topic": {"enum": ["card", "loan"]}, "urgent": {"type": "boolean"}},
    "required": ["topic", "urgent"],
    "additionalProperties": False,
}
AFTER_A_CALL = [
    *ASKED,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Snow, 2 °C"},
]
REQUESTS: dict[str, dict[str, Any]] = {
    "a tool that the model decides to call": {
        "messages": ASKED,
        "tools": [WEATHER],
        "structured_outputs": {"regex": CALLED},
    },
    "a tool that it must call": {
        "messages": ASKED,
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    },
    "some tool that it must call": {"messages": ASKED, "tools": [WEATHER], "tool_choice": "required"},
    "the answer of a tool": {"messages": AFTER_A_CALL, "tools": [WEATHER], "tool_choice": "none"},
    "a JSON schema": {
        "messages": ASKED,
        "response_format": {"type": "json_schema", "json_schema": {"name": "ticket", "schema": TICKET}},
    },
    "a choice": {"messages": ASKED, "structured_outputs": {"choice": ["yes", "no"]}},
    "log probabilities": {"messages": ASKED, "logprobs": True, "top_logprobs": 3},
    "the developer's role": {"messages": [{"role": "developer", "content": "Be brief."}, *ASKED]},
    "parts of a message": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
}


def chunks(text: str) -> list[Any]:
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def comparable(answer: Any) -> Any:
    """Without what differs between two requests, and without the name of the model."""
    varying = {"id", "created", "model", "system_fingerprint", "usage"}
    answer = {name: value for name, value in answer.items() if name not in varying}
    for choice in answer["choices"]:
        for call in (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or ():
            call.pop("id", None)
    return answer


def whole(events: list[Any]) -> dict[str, Any]:
    """What a stream says in all: how it is cut into events depends on the engine's timing."""
    said: dict[str, Any] = {"reasoning": "", "content": "", "arguments": "", "names": []}
    said |= {"logprobs": [], "reasons": []}
    for event in events:
        [choice] = event["choices"]
        delta = choice["delta"]
        said["reasoning"] += delta.get("reasoning") or ""
        said["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            said["arguments"] += call["function"].get("arguments") or ""
            said["names"] += filter(None, [call["function"].get("name")])
        said["logprobs"] += (choice.get("logprobs") or {}).get("content") or []
        said["reasons"] += filter(None, [choice["finish_reason"]])
    assert said["reasons"]
    return said


async def test_the_client_gets_what_the_engine_sends(gateway: Gateway, clean_fleet: Fleet) -> None:
    async with gateway.http(gateway.keys["acme"]) as florin:
        body = {"model": "support", "messages": ASKED, "max_tokens": 1}
        first = await florin.post("/v1/chat/completions", json=body, timeout=120)
        url = clean_fleet.engines[int(first.headers["x-florin-engine"][1:])].url
        [name] = loaded(url)
        async with httpx2.AsyncClient(base_url=url, timeout=120, trust_env=False) as engine:
            await compare(florin, engine, name)
        # The base has no vision.
        parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]
        for stream in (False, True):
            body = {"model": "support", "messages": [{"role": "user", "content": parts}], "stream": stream}
            answer = await florin.post("/v1/chat/completions", json=body, timeout=120)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["type"] == "invalid_request_error"


async def compare(florin: httpx2.AsyncClient, engine: httpx2.AsyncClient, name: str) -> None:
    for title, fields in REQUESTS.items():
        body = {"temperature": 0, "max_tokens": 128, **fields}
        direct = await engine.post("/v1/chat/completions", json={**body, "model": name})
        assert direct.status_code == 200, (title, direct.text)
        through = await florin.post("/v1/chat/completions", json={**body, "model": "support"}, timeout=120)
        assert through.status_code == 200, (title, through.text)
        assert comparable(through.json()) == comparable(direct.json()), title
        body |= {"stream": True}
        sent = chunks((await engine.post("/v1/chat/completions", json={**body, "model": name})).text)
        got = chunks(
            (await florin.post("/v1/chat/completions", json=body | {"model": "support"}, timeout=120)).text
        )
        assert whole(got) == whole(sent), title
        if "tool" in title and "answer" not in title:
            message = through.json()["choices"][0]["message"]
            assert message.get("tool_calls"), (title, message)
            [call] = message["tool_calls"]
            assert call["function"]["name"] == "weather", title
            assert json.loads(call["function"]["arguments"]) in CITIES, (title, call)
