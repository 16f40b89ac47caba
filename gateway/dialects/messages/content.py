"""Messages and their blocks as messages of a chat.

A turn of that API may hold what chats send as several messages: results of tools, each a message of role
`tool`, and what the user says with them. Turns of the same role that follow each other count as one, as
there; many chat templates refuse anything else. A system message in the middle of a conversation becomes part
of the user's turn, because most templates accept only one, at the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.fields.anthropic_messages import BLOCKS, MUST, REFUSED_BLOCKS
from gateway.fields.rule import FieldReading, WrongError, read

ATTRIBUTION = "x-anthropic-billing-header:"
"""Claude Code's first block of the system prompt begins with it. It is for Anthropic's accounting, and
differs in each request: no engine would ever find the prompt in its cache."""
_ROLES = ("user", "assistant", "system")
_SENT = ", ".join(f"`{kind}`" for kind in BLOCKS)
_ANYWHERE = frozenset({"text"})
_OF_USERS = _ANYWHERE | {"image", "document", "search_result", "tool_result"}
_OF_ASSISTANTS = _ANYWHERE | {"thinking", "redacted_thinking", "tool_use"}
_OF_RESULTS = _ANYWHERE | {"image", "document", "search_result", "tool_reference"}
_OF_DOCUMENTS = _ANYWHERE | {"image"}


@dataclass(slots=True)
class Turn:
    """What one side says until the other does."""

    role: str
    parts: list[dict[str, Any]] = field(default_factory=list)
    """Parts of a chat's message: texts and images, in order. In a user's turn, also whole messages with the
    results of tools."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)


def chat_messages(system: Any, given: list[Any], reading: FieldReading) -> list[dict[str, Any]]:
    """The messages of a chat. Raises WrongError."""
    turns = [] if system is None else [Turn("system", _system(system, reading))]
    for number, message in enumerate(given):
        try:
            _take(message, turns, reading)
        except WrongError as error:
            raise error.under(f"[{number}]").under("messages") from None
    messages = [message for turn in turns for message in _rendered(turn)]
    if not messages:  # only a system prompt without text
        raise WrongError(MUST, path="messages")
    return messages


def _system(system: Any, reading: FieldReading) -> list[dict[str, Any]]:
    try:
        parts = _parts(system, _ANYWHERE, reading)
    except WrongError as error:
        raise error.under("system") from None
    if type(system) is str:
        return parts
    return [part for part in parts if not part["text"].startswith(ATTRIBUTION)]


def _take(message: Any, turns: list[Turn], reading: FieldReading) -> None:
    """Add a message to the turns."""
    if type(message) is not dict or "content" not in message:
        raise WrongError("be " + MUST.partition("each ")[2])
    role = message.get("role")
    if role not in _ROLES:
        raise WrongError("be `user`, `assistant` or `system`", path="role")
    if role == "system" and turns and turns[-1].role != "system":
        role = "user"
    if not turns or turns[-1].role != role:
        turns.append(Turn(role))
    turn = turns[-1]
    for name in message:
        if name not in ("role", "content"):
            reading.drop(name)
    try:
        if role == "assistant":
            _take_assistants(message["content"], turn, reading)
        elif message["role"] == "system":
            turn.parts += _parts(message["content"], _ANYWHERE, reading)
        else:
            turn.parts += _parts(message["content"], _OF_USERS, reading)
    except WrongError as error:
        raise error.under("content") from None


def _take_assistants(content: Any, turn: Turn, reading: FieldReading) -> None:
    for number, (kind, block) in enumerate(_blocks(content, _OF_ASSISTANTS, reading)):
        try:
            if kind == "text":
                turn.parts.append(_text(block.get("text")))
            elif kind == "thinking":
                turn.thoughts.append(block.get("thinking", ""))
            elif kind == "tool_use":
                turn.calls.append(_call(block))
        except WrongError as error:
            raise error.under(f"[{number}]") from None


def _call(block: dict[str, Any]) -> dict[str, Any]:
    for name in ("id", "name"):
        if name not in block:
            raise WrongError("be a string", path=name)
    try:
        arguments = orjson.dumps(block.get("input", {})).decode()
    except TypeError:  # nested too deeply to serialize
        raise WrongError("be nested less deeply", path="input") from None
    function = {"name": block["name"], "arguments": arguments}
    return {"id": block["id"], "type": "function", "function": function}


def _parts(content: Any, kinds: frozenset[str], reading: FieldReading) -> list[dict[str, Any]]:
    """The parts of a chat's message for blocks."""
    parts: list[dict[str, Any]] = []
    for number, (kind, block) in enumerate(_blocks(content, kinds, reading)):
        try:
            if kind == "text":
                parts.append(_text(block.get("text")))
            elif kind == "image":
                parts.append(_image(block))
            elif kind == "tool_reference":
                parts.append(_text(block.get("tool_name")))
            elif kind == "tool_result":
                parts += _result(block, reading)
            else:
                parts += _document(kind, block, reading)
        except WrongError as error:
            raise error.under(f"[{number}]") from None
    return parts


def _blocks(
    content: Any, kinds: frozenset[str], reading: FieldReading
) -> Iterable[tuple[str, dict[str, Any]]]:
    """The type and the checked fields of each block."""
    if type(content) is str:
        return [("text", {"text": content})]
    if type(content) is not list:
        raise WrongError("be a string or a list of blocks")
    blocks = []
    for number, block in enumerate(content):
        try:
            blocks.append(_block(block, kinds, reading))
        except WrongError as error:
            raise error.under(f"[{number}]") from None
    return blocks


def _block(block: Any, kinds: frozenset[str], reading: FieldReading) -> tuple[str, dict[str, Any]]:
    kind = block.get("type") if type(block) is dict else None
    if type(kind) is not str or (kind not in BLOCKS and kind not in REFUSED_BLOCKS):
        raise WrongError(f"have a `type` of {_SENT}")
    if kind in REFUSED_BLOCKS:
        raise WrongError(REFUSED_BLOCKS[kind].why, path="type", code="unsupported_parameter")
    if kind not in kinds:
        listed = ", ".join(f"`{name}`" for name in BLOCKS if name in kinds)
        raise WrongError(f"be one of {listed} here", path="type")
    fields = {name: value for name, value in block.items() if name != "type"}
    return kind, read(BLOCKS[kind], fields, reading)


def _text(value: Any) -> dict[str, Any]:
    if type(value) is not str:
        raise WrongError("be a string", path="text")
    return {"type": "text", "text": value}


def _image(block: dict[str, Any]) -> dict[str, Any]:
    if "source" not in block:
        raise WrongError("be an object with a `type`", path="source")
    return {"type": "image_url", "image_url": {"url": block["source"]}}


def _document(kind: str, block: dict[str, Any], reading: FieldReading) -> list[dict[str, Any]]:
    """A document or a search result: its lines of description, and what it consists of."""
    if kind == "search_result":
        lines, where, content = ("title", "source"), "content", block.get("content")
    else:
        source = block.get("source") or {}
        plain = source.get("type") == "text"
        where = "source.data" if plain else "source.content"
        lines, content = ("title", "context"), source.get("data" if plain else "content")
    described = [_text(block[name]) for name in lines if block.get(name)]
    try:
        return described + _parts(content, _OF_DOCUMENTS, reading)
    except WrongError as error:
        raise error.under(where) from None


def _result(block: dict[str, Any], reading: FieldReading) -> list[dict[str, Any]]:
    """A message with a tool's result, and the images in it: templates render only a result's text."""
    if "tool_use_id" not in block:
        raise WrongError("be a string", path="tool_use_id")
    try:
        parts = _parts(block.get("content", ""), _OF_RESULTS, reading)
    except WrongError as error:
        raise error.under("content") from None
    text = _joined(parts)
    if block.get("is_error"):
        text = f"Error: {text}"
    images = [part for part in parts if part["type"] != "text"]
    return [{"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}, *images]


def _joined(parts: Iterable[dict[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def _rendered(turn: Turn) -> Iterable[dict[str, Any]]:
    if turn.role == "assistant":
        # What a model said in one turn has been cut into blocks only where it called tools.
        text = "".join(part["text"] for part in turn.parts)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not turn.calls else None}
        if turn.thoughts:
            message["reasoning"] = "\n".join(turn.thoughts)
        if turn.calls:
            message["tool_calls"] = turn.calls
        return [message]
    if turn.role == "system":
        text = _joined(turn.parts)
        return [{"role": "system", "content": text}] if text else []
    return _users(turn.parts)


def _users(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A user's turn: results of tools that follow each other stay together, and their images follow."""
    messages: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    after_results = False
    for part in parts:
        if "role" in part:
            if pending:
                messages.append(_user_message(shown + pending))
                pending, shown = [], []
            messages.append(part)
            after_results = True
        elif after_results and not pending and part["type"] != "text":
            shown.append(part)
        else:
            pending.append(part)
    if pending or shown or not messages:
        messages.append(_user_message(shown + pending))
    return messages


def _user_message(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Text alone is sent as a string, as in most chats: then engines with the same beginning in their cache
    are recognized, and streams can be resumed."""
    if all(part["type"] == "text" for part in parts):
        return {"role": "user", "content": _joined(parts)}
    return {"role": "user", "content": parts}
