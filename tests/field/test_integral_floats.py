"""Counts that a language without integers writes as `5.0` are integers.

Source: a survey of clients
Sent: `max_tokens: 5.0` and other counts, token ids and limits as floats without a fraction, to every API; and `5.5`.
Right: the engine gets integers, and the answer repeats integers; a fraction is refused with the field's name.
Why: Lua and R write every number so, and JSON knows no difference; vLLM takes such numbers.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Deployment

HELLO = [{"role": "user", "content": "Hello!"}]
SENT: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "messages": HELLO,
            "max_tokens": 5.0,
            "n": 1.0,
            "top_k": -1.0,
            "stop_token_ids": [7.0, 8],
            "seed": -3.0,
        },
        {"max_tokens": 5, "n": 1, "top_k": -1, "stop_token_ids": [7, 8], "seed": -3},
    ),
    "completions": (
        "/v1/completions",
        {"prompt": [1.0, 2], "logprobs": 2.0},
        {"prompt": [1, 2], "logprobs": 2},
    ),
    "prompts": ("/v1/completions", {"prompt": [[1.0], [2, 3.0]]}, {"prompt": [[1], [2, 3]]}),
    "messages": (
        "/v1/messages",
        {"messages": HELLO, "max_tokens": 5.0, "top_k": 4.0},
        {"max_tokens": 5, "top_k": 4},
    ),
    "responses": (
        "/v1/responses",
        {"input": "Hello!", "max_output_tokens": 5.0},
        {"max_completion_tokens": 5},
    ),
}


@pytest.mark.parametrize(("path", "body", "sent"), SENT.values(), ids=SENT)
async def test_they_are_sent_as_integers(
    deployment: Deployment, path: str, body: dict[str, Any], sent: dict[str, Any]
):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as client:
        response = await client.post(path, json={"model": "support", **body})
    assert response.status_code == 200, response.text
    assert b"5.0" not in response.content
    [call] = deployment.calls()
    assert {name: call.body[name] for name in sent} == sent
    assert not any(type(value) is float for name in sent for value in [call.body[name]])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 5.5}, "max_tokens"),
        ("/v1/chat/completions", {"messages": HELLO, "n": 1e300}, "n"),
        ("/v1/completions", {"prompt": [1.5]}, "prompt"),
        ("/v1/responses", {"input": "Hello!", "max_output_tokens": 5.5}, "max_output_tokens"),
    ],
)
async def test_a_fraction_is_refused(deployment: Deployment, path: str, body: dict[str, Any], param: str):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as client:
        response = await client.post(path, json={"model": "support", **body})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
