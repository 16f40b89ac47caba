"""A tool, or a call of one, that has another API's shape is refused with its place.

Source: a survey of clients
Sent: to chat, a tool whose `name` lies beside its `type`, as /v1/responses has it; and an earlier call whose `arguments`
    are an object.
Right: 400 that names `tools[1].function`, or `messages[1].tool_calls[1].function.arguments`, and what belongs there.
Why: engines answer the first with "Field required" and the second, which is one of a union of types, without a place.
    OpenAI refuses both.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Deployment

HELLO = {"role": "user", "content": "Hello!"}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "find", "parameters": {"type": "object"}}


def turn(arguments: Any) -> dict[str, Any]:
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": "find", "arguments": given}}
        for i, given in enumerate(["{}", arguments])
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"tools": [TOOL, FLAT]},
            "tools[1].function",
            "a tool whose `name` is beside its `type` is for /v1/responses",
        ),
        (
            {"tools": [TOOL, {"type": "function"}]},
            "tools[1].function",
            "must be an object with the function's `name`",
        ),
        *(
            (
                {"messages": [HELLO, turn(wrong)]},
                "messages[1].tool_calls[1].function.arguments",
                "must be a string",
            )
            for wrong in ({"city": "Bern"}, None, [])
        ),
    ],
)
async def test_it_is_refused_with_its_place(
    deployment: Deployment, fields: dict[str, Any], param: str, message: str
):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as client:
        response = await client.post(
            "/v1/chat/completions", json={"model": "support", "messages": [HELLO], **fields}
        )
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert message in error["message"]
    assert deployment.calls() == []
