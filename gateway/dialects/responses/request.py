"""Turns a request to /v1/responses into a chat."""

from __future__ import annotations

import random
import time
from typing import Any

import orjson

from gateway.dataplane.reply import Reply
from gateway.dataplane.request import Body
from gateway.dialects.responses.envelope import Envelope, echo
from gateway.dialects.responses.reply import CountReply, ResponsesReply
from gateway.errors import too_deep
from gateway.fields.grammars import allow_tools
from gateway.fields.response_items import ROLES, item
from gateway.fields.response_tools import CUSTOM_INPUT, names, sent_name
from gateway.fields.responses import COPIED, LOGPROBS, MUST, RESPONSES
from gateway.fields.rule import FieldReading, WrongError, read
from gateway.fields.tokenization import of_chat

_LABELS = ("model", "user", "safety_identifier", "metadata", "service_tier")
"""Fields that no engine gets, but that the checks of a chat read."""
_SEPARATOR = "\n\n"
"""Between system messages at the beginning, which are sent as one: many templates allow no more."""


def translate(body: Body, reading: FieldReading) -> tuple[Body, Reply]:
    """See `request.Translate`."""
    chat, given = _chat(body, reading)
    identity = f"{random.getrandbits(176):044x}"
    try:
        envelope = Envelope(
            identity, int(time.time()), echo(body | {n: given[n] for n in _COUNTS if n in given})
        )
    except TypeError:
        raise too_deep() from None
    return chat, ResponsesReply(envelope, tools=names(body.get("tools") or ()))


def translate_count(body: Body, reading: FieldReading) -> tuple[Body, Reply]:
    """The same for a request to count the tokens of its input."""
    chat, _ = _chat(body, reading)
    try:
        allow_tools(chat)
    except WrongError as error:
        error.path = error.path.replace(".allowed_tools", "")
        raise
    return of_chat(chat), CountReply()


def _chat(body: Body, reading: FieldReading) -> tuple[Body, Body]:
    """The chat, and the checked request from which it was made."""
    own = FieldReading(reading.policy)  # what this counts is counted again when the chat is checked
    given = read(RESPONSES, body, own, top=True)
    if "input" not in given:
        raise WrongError(MUST, path="input")
    text, reasoning, include = given.get("text", {}), given.get("reasoning", {}), given.get("include", ())
    chat: Body = {name: body[name] for name in _LABELS if name in body}
    chat["messages"] = _messages(given.get("instructions"), given["input"], own)
    for name in given:
        if name in _COPIED or name not in RESPONSES:  # or an operator has it passed
            chat[name] = given[name]
    if "max_output_tokens" in given:
        chat["max_completion_tokens"] = given["max_output_tokens"]
    if LOGPROBS in include or given.get("top_logprobs"):
        chat["logprobs"] = True
    if "effort" in reasoning:
        chat["reasoning_effort"] = reasoning["effort"]
    if "format" in text:
        _set_format(chat, text["format"])
    if given.get("tools"):
        chat["tools"] = given["tools"]
    if given.get("tools") or given.get("tool_choice") not in _WITHOUT_TOOLS:
        chat["tool_choice"] = given.get("tool_choice")
    reading.unknown += own.unknown
    reading.names += own.names
    return chat, given


_COPIED = frozenset(COPIED)
_COUNTS = ("max_output_tokens", "top_logprobs")
"""Integers that the answer repeats."""
_WITHOUT_TOOLS = (None, "none", "auto")
"""Choices that ask for nothing if there are no tools; vLLM would refuse some."""


def _set_format(chat: Body, given: dict[str, Any]) -> None:
    kind = given.get("type")
    if kind == "json_schema":
        if "schema" not in given:
            raise WrongError("be a JSON schema: an object", path="text.format.schema")
        schema = {name: value for name, value in given.items() if name != "type"}
        chat["response_format"] = {"type": kind, "json_schema": {"name": "answer"} | schema}
    elif kind == "json_object":
        chat["response_format"] = {"type": kind}
    elif kind is None:
        raise WrongError("be `text`, `json_object` or `json_schema`", path="text.format.type")


# -- messages


def _messages(instructions: str | None, given: str | list[Any], reading: FieldReading) -> list[Body]:
    chat = _Chat()
    if instructions:
        chat.message("system", instructions)
    if type(given) is str:
        chat.message("user", given)
        return chat.complete()
    for number, entry in enumerate(given):
        try:
            chat.add(*item(entry, reading))
        except WrongError as error:
            raise error.under(f"[{number}]").under("input") from None
    return chat.complete()


class _Chat:
    """Collects messages. What the model has said in one turn (reasoning, text, calls) is several items, but
    one message."""

    def __init__(self) -> None:
        self.messages: list[Body] = []
        self._system: list[str] = []
        """The texts of the first message, if it is a system message; joined at the end, because joining each
        to all before it takes time in proportion to the square of their length."""

    def complete(self) -> list[Body]:
        """The messages, once all items have been added."""
        if self._system:
            self.messages[0]["content"] = _SEPARATOR.join(self._system)
        return self.messages

    def add(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "message":
            self.message(ROLES[fields["role"]], fields["content"])
        elif kind == "reasoning":
            if fields.get("content"):
                self._turn("reasoning", "content", "tool_calls")["reasoning"] = fields["content"]
        elif kind == "function_call":
            self._call(fields, fields["arguments"])
        elif kind == "custom_tool_call":
            self._call(fields, orjson.dumps({CUSTOM_INPUT: fields["input"]}).decode())
        else:
            output = {"role": "tool", "tool_call_id": fields["call_id"], "content": fields["output"]}
            self.messages.append(output)

    def message(self, role: str, content: Any) -> None:
        if role == "assistant":
            self._turn("content")["content"] = content  # also after calls: their outputs must follow them
            return
        if role == "system":
            content = _joined(content)
        if role == "system" and type(content) is str:
            if self._system and len(self.messages) == 1:
                self._system.append(content)
                return
            if not self.messages:
                self._system.append(content)
        self.messages.append({"role": role, "content": content})

    def _call(self, fields: dict[str, Any], arguments: str) -> None:
        function = {"name": sent_name(fields["name"], fields.get("namespace")), "arguments": arguments}
        call = {"id": fields["call_id"], "type": "function", "function": function}
        self._turn().setdefault("tool_calls", []).append(call)

    def _turn(self, *unless: str) -> Body:
        """The message of the model's turn at the end; a new one if there is none, or it has one of these."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or any(last.get(name) is not None for name in unless):
            last = {"role": "assistant", "content": None}
            self.messages.append(last)
        return last


def _joined(content: str | list[Body]) -> str | list[Body]:
    """Texts as one string, as most templates read a system message; Codex sends several."""
    if type(content) is list and all(part["type"] == "text" for part in content):
        return _SEPARATOR.join(part["text"] for part in content)
    return content
