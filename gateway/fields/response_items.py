"""The items of a request to /v1/responses, and the parts of their content.

Checks return the corresponding values of a chat.
"""

from __future__ import annotations

from typing import Any

from gateway.fields.checks import a_list, text
from gateway.fields.media import media_url
from gateway.fields.messages import PARTS as CHAT_PARTS
from gateway.fields.rule import FieldReading, Table, WrongError, bounded, dropped, passed, read, refused

_TEXT = text()
_IDENTITY = dropped("Florin stores no items, so it says nothing here")
_OPENAIS = dropped("it concerns tools that OpenAI runs")
_BREAKPOINT = dropped("a hint for OpenAI's service, without effect here")
_NO_FILES = "Florin stores no files, and vLLM does not read any; send text, or pages as images"
_TYPE = passed(_TEXT, "says what it is")

# -- parts of content


def _image(value: Any, reading: FieldReading) -> Any:
    return {"url": media_url(value, reading)}


_TEXT_PART: Table = {
    "type": _TYPE,
    "text": passed(_TEXT, "text"),
    "annotations": dropped("sources of an earlier answer; models do not see them"),
    "logprobs": dropped("scores of an earlier answer"),
    "prompt_cache_breakpoint": _BREAKPOINT,
}
PARTS: dict[str, Table] = {
    "input_text": _TEXT_PART,
    "output_text": _TEXT_PART,
    "refusal": {"type": _TYPE, "refusal": passed(_TEXT, "an earlier refusal")},
    "input_image": {
        "type": _TYPE,
        "image_url": bounded(_image, CHAT_PARTS["image_url"][1].why),
        "detail": dropped("vLLM has only one level of detail"),
        "file_id": refused(_NO_FILES),
        "prompt_cache_breakpoint": _BREAKPOINT,
    },
    "input_audio": {"type": _TYPE, "input_audio": CHAT_PARTS["input_audio"][1]},
    "input_file": {
        "type": refused(_NO_FILES),
        **{
            name: dropped("part of a file, which is refused")
            for name in ("file_data", "file_id", "file_url", "filename", "detail", "prompt_cache_breakpoint")
        },
    },
}
"""By type."""
_VALUES = {"refusal": "refusal", "input_image": "image_url", "input_audio": "input_audio"}
"""By type: the field that a part of the chat has; else `text`."""
_KINDS = ", ".join(f"`{kind}`" for kind in PARTS if kind != "input_file")


def _part(value: Any, reading: FieldReading) -> Any:
    kind: Any = value.get("type") if type(value) is dict else None
    table = PARTS.get(kind) if type(kind) is str else None
    if table is None:
        raise WrongError(f"have a `type` of {_KINDS}")
    sent = read(table, value, reading)
    field = _VALUES.get(kind, "text")
    if field not in sent:
        raise WrongError("be given", path=field)
    return {"type": field, field: sent[field]}


_PARTS = a_list(_part, 4096, "parts")


def content(value: Any, reading: FieldReading) -> Any:
    """A message's content, or a tool's output. One text is sent as a string, which all templates can read."""
    if type(value) is str:
        return value
    if type(value) is not list:
        raise WrongError("be a string or a list of parts")
    parts = _PARTS(value, reading)
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and "text" in parts[0] else parts


def _texts(value: Any, _: FieldReading) -> Any:
    """The texts of a reasoning item, as one string."""
    if type(value) is not list or not all(type(v) is dict and type(v.get("text")) is str for v in value):
        raise WrongError("be a list of objects with a `text`")
    return "\n".join(part["text"] for part in value)


# -- items

_CONTENT = bounded(content, "text, or parts: see below")
_STATUS: Table = {"type": _TYPE, "id": _IDENTITY, "status": _IDENTITY}
_CALL: Table = {
    **_STATUS,
    "call_id": passed(_TEXT, "joins a call and its output"),
    "name": passed(_TEXT, "the function's or the tool's name"),
    "caller": _OPENAIS,
    "namespace": passed(_TEXT, "joined with the name, as in `tools`"),
    "async": _OPENAIS,
}
_OUTPUT: Table = {
    **_CALL,
    "name": dropped("its call has it"),
    "namespace": dropped("its call has it"),
    "output": _CONTENT,
}
ITEMS: dict[str, Table] = {
    "message": {
        **_STATUS,
        "role": passed(_TEXT, "`user`, `assistant`, `system` or `developer`; the last is sent as `system`"),
        "content": _CONTENT,
        "phase": dropped("templates do not render it"),
    },
    "function_call": {**_CALL, "arguments": passed(_TEXT, "sent in `tool_calls`")},
    "function_call_output": _OUTPUT,
    "custom_tool_call": {**_CALL, "input": passed(_TEXT, "sent in `tool_calls`")},
    "custom_tool_call_output": _OUTPUT,
    "reasoning": {
        **_STATUS,
        "content": bounded(_texts, "sent as `reasoning`, for templates that render it"),
        "summary": dropped("a summary is not what the model has said"),
        "encrypted_content": dropped("only the service that has encrypted it can read it"),
    },
}
"""By type."""
REQUIRED: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
}
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""Role → that of the chat: few templates know `developer`, and most of the others leave it out silently."""

_UNSTORED = "Florin stores no items; send the item itself, as clients do if `store` is false"
_HOSTED = "it belongs to a tool that OpenAI runs, and Florin runs none"
REFUSED_ITEMS: dict[str, str] = {
    "item_reference": _UNSTORED,
    "compaction": "only the service that has compacted the conversation can read it",
    "compaction_trigger": "Florin does not shorten conversations",
    **dict.fromkeys(
        (
            "additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call",
            "computer_call", "computer_call_output", "configuration_update", "file_search_call",
            "image_generation_call", "local_shell_call", "local_shell_call_output", "mcp_approval_request",
            "mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output", "shell_call",
            "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call",
        ),
        _HOSTED,
    ),
}  # fmt: skip
"""By type, why."""
_ITEM_TYPES = ", ".join(f"`{kind}`" for kind in ITEMS)


def item(value: Any, reading: FieldReading) -> tuple[str, dict[str, Any]]:
    """An item's type, and its fields that count. Raises WrongError."""
    if type(value) is not dict:
        raise WrongError(f"be an object with a `type` of {_ITEM_TYPES}")
    kind: Any = value.get("type")
    if kind is None and "role" in value:
        kind = "message"
    table = ITEMS.get(kind) if type(kind) is str else None
    if table is None:
        raise refusal(kind, REFUSED_ITEMS, _ITEM_TYPES)
    fields = read(table, value, reading)
    for name in REQUIRED[kind]:
        if name not in fields:
            raise WrongError("be given", path=name)
    if kind == "message" and fields["role"] not in ROLES:
        raise WrongError(f"be one of {', '.join(f'`{role}`' for role in ROLES)}", path="role")
    return kind, fields


def refusal(kind: Any, known: dict[str, str], types: str) -> WrongError:
    """The refusal of a `type` that no table has."""
    reason = known.get(kind) if type(kind) is str else None
    if reason is None:
        return WrongError(f"be one of {types}", path="type")
    return WrongError(f"`{kind}`: {reason}", path="type", code="unsupported_parameter")
