"""Whole answers, and what streams have in common with them."""

from __future__ import annotations

import re
import secrets
from typing import Any, Final

import orjson

from gateway.dataplane.reply import ReplyUsage

INVALID_INPUT: Final = "invalid_json"
"""The only member of a call's `input` if the model's arguments are not a JSON object: their text."""
_STOPS: Final = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,256}", re.ASCII)


def counts(usage: ReplyUsage) -> dict[str, Any]:
    """That API's `usage`. Its input tokens are those that no cache held."""
    cached = usage.cached or 0
    tokens: dict[str, Any] = {
        "input_tokens": usage.prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion,
    }
    if usage.reasoning:
        tokens["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return tokens


def stop(choice: dict[str, Any], *, called: bool) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence` for a choice that has finished. `called`: the model has called a
    tool."""
    reason, matched = choice.get("finish_reason"), choice.get("stop_reason")
    if reason == "stop" and called:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if reason == "stop" and type(matched) is str:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": _STOPS.get(reason or "", "end_turn"), "stop_sequence": None}


def call_id(given: object) -> str:
    """The engine's id of a call if that API's clients accept it, since the chat template may render it when
    the result comes."""
    if type(given) is str and _CALL_ID.fullmatch(given):
        return given
    return f"toolu_{secrets.token_hex(12)}"


def thoughts(message: dict[str, Any]) -> Any:
    """The reasoning in a message or a delta."""
    return message.get("reasoning") or message.get("reasoning_content")


def message(
    message_id: str, model: str, content: list[dict[str, Any]], ended: dict[str, Any], usage: ReplyUsage
) -> dict[str, Any]:
    """A message object."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **ended,
        "usage": counts(usage),
    }


def blocks(chat_message: dict[str, Any]) -> list[dict[str, Any]]:
    """The content for a chat's message."""
    content: list[dict[str, Any]] = []
    thinking, text, calls = (
        thoughts(chat_message),
        chat_message.get("content"),
        chat_message.get("tool_calls") or (),
    )
    if thinking:
        content.append({"type": "thinking", "thinking": _string(thinking), "signature": ""})
    if text:
        content.append({"type": "text", "text": _string(text)})
    for call in calls:
        function = call["function"]
        arguments = _arguments(_string(function.get("arguments") or ""))
        name = _string(function["name"])
        content.append({"type": "tool_use", "id": call_id(call.get("id")), "name": name, "input": arguments})
    return content


def _string(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("a text is not a string")
    return value


def _arguments(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        parsed = None
    return parsed if type(parsed) is dict else {INVALID_INPUT: text}
