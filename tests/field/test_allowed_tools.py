"""A choice among allowed tools shows the model only these.

Source: a survey of clients
Sent: `tool_choice` of type `allowed_tools`, to /v1/responses and, in its own shape, to chat.
Right: the engine gets the allowed tools, and `auto` or `required` as the choice; the Response repeats what was asked.
    A tool that is not among `tools` is refused.
Why: agents of OpenAI narrow their tools so from turn to turn; vLLM does not know this choice.
"""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.integration.conftest import Deployment

FLAT: list[Any] = [
    {"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("find", "buy", "sell")
]
NESTED: list[Any] = [
    {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
    for tool in FLAT
]


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_only_the_allowed_tools_are_shown(deployment: Deployment, mode: str):
    flat: Any = {
        "type": "allowed_tools",
        "mode": mode,
        "tools": [{"type": "function", "name": n} for n in ("sell", "find")],
    }
    names = [{"type": "function", "function": {"name": name}} for name in ("sell", "find")]
    nested: Any = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}}
    async with deployment.gateway.client("acme") as client:
        answer = await client.responses.create(model="support", input="Hello!", tools=FLAT, tool_choice=flat)
        await client.chat.completions.create(
            model="support",
            messages=[{"role": "user", "content": "Hello!"}],
            tools=NESTED,
            tool_choice=nested,
        )
    assert answer.tool_choice.to_dict() == flat
    assert [tool.name for tool in answer.tools] == ["find", "buy", "sell"]
    for call in deployment.calls():
        assert [tool["function"]["name"] for tool in call.body["tools"]] == ["find", "sell"]
        assert call.body["tool_choice"] == mode


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"mode": "auto", "tools": [{"type": "function", "name": "steal"}]}, "tool_choice.tools[0]"),
        ({"mode": "auto", "tools": [{"type": "mcp"}]}, "tool_choice.tools[0]"),
        ({"mode": "auto", "tools": []}, "tool_choice"),
        ({"mode": "auto"}, "tool_choice.tools"),
        ({"mode": "none", "tools": [{"type": "function", "name": "find"}]}, "tool_choice.mode"),
        ({"tools": [{"type": "function", "name": "find"}]}, "tool_choice.mode"),
    ],
)
async def test_a_choice_that_allows_nothing_is_refused(
    deployment: Deployment, choice: dict[str, Any], param: str
):
    wrong: Any = {"type": "allowed_tools", **choice}
    async with deployment.gateway.client("acme") as client:
        for ask in (client.responses.create, client.responses.input_tokens.count):
            with pytest.raises(openai.BadRequestError) as refused:
                await ask(model="support", input="Hello!", tools=FLAT, tool_choice=wrong)
            assert refused.value.param == param
    assert deployment.calls() == []
