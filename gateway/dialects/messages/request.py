"""Requests of that API as chats."""

from __future__ import annotations

from typing import Any

from gateway.dialects.messages.content import chat_messages
from gateway.dialects.messages.stream import CountReply, MessagesReply
from gateway.dialects.messages.tools import chat_choice, chat_tools
from gateway.fields.anthropic_messages import MESSAGES, MUST, PROMPT
from gateway.fields.rule import FieldReading, Table, WrongError, read
from gateway.fields.tokenization import of_chat

Body = dict[str, Any]

NAMES = {
    "messages": "messages",
    "tools[].function.parameters": "tools[].input_schema",
    "tools[].function": "tools[]",
    "stop": "stop_sequences",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "max_completion_tokens": "max_tokens",
}
"""That API's names of a chat's fields: see `gateway.dataplane.request.Endpoint.names`."""
_SAME = ("max_tokens", "stream", "temperature", "top_p", "top_k")


def translate(body: Body, reading: FieldReading) -> tuple[Body, MessagesReply]:
    """See `gateway.dataplane.request.Translate`."""
    given = read(MESSAGES, body, reading, top=True)
    if "max_tokens" not in given:
        raise WrongError("be given: the maximum number of tokens to generate", path="max_tokens")
    chat = _chat(body, given, reading, MESSAGES)
    for name in _SAME:
        if name in given:
            chat[name] = given[name]
    if given.get("stop_sequences"):
        chat["stop"] = given["stop_sequences"]
    metadata = given.get("metadata", {})
    if "user_id" in metadata:
        chat["user"] = metadata["user_id"]
    if "tag" in metadata:
        chat["metadata"] = {"tag": metadata["tag"]}
    return chat, MessagesReply(chat["model"])


def _chat(body: Body, given: Body, reading: FieldReading, table: Table) -> Body:
    if "messages" not in given:
        raise WrongError(MUST, path="messages")
    chat: Body = {name: value for name, value in given.items() if name not in table}
    chat["model"] = body.get("model") or ""
    chat["messages"] = chat_messages(given.get("system"), given["messages"], reading)
    if given.get("tools"):
        chat["tools"] = chat_tools(given["tools"], reading)
    if "tool_choice" in given:
        chat |= chat_choice(given["tool_choice"])
    thinking = given.get("thinking", {}).get("type")
    if thinking in ("enabled", "disabled"):  # templates have one name for it or the other
        chat["chat_template_kwargs"] = dict.fromkeys(("enable_thinking", "thinking"), thinking == "enabled")
    output = given.get("output_config", {})
    if "effort" in output:
        chat["reasoning_effort"] = output["effort"]
    if "format" in output:
        if "schema" not in output["format"]:
            raise WrongError("be a JSON schema", path="output_config.format.schema")
        schema = {"name": "answer", "schema": output["format"]["schema"]}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    last = chat["messages"][-1]
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        chat["continue_final_message"], chat["add_generation_prompt"] = True, False
    return chat


def translate_count(body: Body, reading: FieldReading) -> tuple[Body, CountReply]:
    """The same for a request to count a message's tokens."""
    chat = _chat(body, read(PROMPT, body, reading, top=True), reading, PROMPT)
    return of_chat(chat), CountReply(chat["model"])
