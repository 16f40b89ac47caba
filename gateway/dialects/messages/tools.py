"""Tools and the choice among them, as a chat's."""

from __future__ import annotations

from typing import Any

from gateway.fields.anthropic_messages import TOOL, tool_refusal
from gateway.fields.rule import FieldReading, WrongError, read

_OWN = (None, "custom")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(tools: list[Any], reading: FieldReading) -> list[dict[str, Any]]:
    """A chat's `tools`. Raises WrongError."""
    sent = []
    for number, tool in enumerate(tools):
        try:
            sent.append({"type": "function", "function": _function(tool, reading)})
        except WrongError as error:
            raise error.under(f"[{number}]").under("tools") from None
    return sent


def _function(tool: Any, reading: FieldReading) -> dict[str, Any]:
    if type(tool) is not dict:
        raise WrongError("be an object")
    kind = tool.get("type")
    if kind not in _OWN:
        raise tool_refusal(kind)
    given = read(TOOL, tool, reading)
    if "name" not in given:
        raise WrongError("be a string", path="name")
    if "input_schema" in given:
        given["parameters"] = given.pop("input_schema")
    return given


def chat_choice(choice: dict[str, Any]) -> dict[str, Any]:
    """A chat's `tool_choice` and `parallel_tool_calls`. Raises WrongError."""
    kind = choice.get("type")
    if kind == "tool":
        if "name" not in choice:
            raise WrongError("be a string", path="tool_choice.name")
        sent: dict[str, Any] = {"tool_choice": {"type": "function", "function": {"name": choice["name"]}}}
    elif kind in _CHOICES:
        sent = {"tool_choice": _CHOICES[kind]}
    else:
        raise WrongError("be one of `auto`, `any`, `tool`, `none`", path="tool_choice.type")
    if choice.get("disable_parallel_tool_use"):
        sent["parallel_tool_calls"] = False
    return sent
