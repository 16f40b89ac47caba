"""The fields of Anthropic's Messages API. Once translated, they are checked again as a chat's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from adapters.model import MAX_STOP_STRINGS
from gateway.fields.checks import a_list, an_object, integer, number, one_of, switch, text, texts, that
from gateway.fields.media import media_url
from gateway.fields.rule import (
    FieldReading,
    Rule,
    Table,
    WrongError,
    bounded,
    dropped,
    passed,
    read,
    refused,
    replaced,
)

MAX_TURNS: Final = 100_000
"""Messages of one request: that API's limit."""
EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")

_TEXT = text()
_CACHED = dropped("engines cache the beginning of each prompt without being told")
_SERVER = "Florin runs no tools itself; declare a tool of your own with an `input_schema`"
_TRAINED = "only Anthropic's models know its schema; declare it as a tool with an `input_schema`"
_CALLERS = dropped("only the model calls tools")
_HISTORY = "it belongs to a tool that Anthropic's servers run, and Florin runs none"
_HINT = "a hint for Anthropic's service, without effect here"


def _any(value: Any, _: FieldReading) -> Any:
    """For fields that are checked where they are translated."""
    return value


# -- blocks of a message's content


def _source(value: Any, reading: FieldReading) -> str:
    """The URL of an image."""
    if type(value) is not dict:
        raise WrongError("be an object with a `type`")
    source = read(SOURCE, value, reading)
    apart = FieldReading(reading.policy)  # the chat's check counts images
    if source.get("type") == "url":
        try:
            return media_url(source.get("url"), apart)
        except WrongError as error:
            raise error.under("url") from None
    if "media_type" not in source or "data" not in source:
        raise WrongError("have a `media_type` and `data` in base64")
    return media_url(f"data:{source['media_type']};base64,{source['data']}", apart)


def _no_citations(value: Any, _: FieldReading) -> None:
    if type(value) is dict and value.get("enabled"):
        raise WrongError("answers have no citations", path="enabled", code="unsupported_parameter")


SOURCE: Table = {
    "type": bounded(one_of("base64", "url"), "Florin stores no files"),
    "media_type": bounded(one_of(*IMAGES), "the image's format"),
    "data": passed(_TEXT, "the image in base64"),
    "url": passed(_TEXT, "of a host that the operator has allowed, from which the engine fetches it"),
    "file_id": refused("Florin stores no files; send the image itself"),
}
DOCUMENT_SOURCE: Table = {
    "type": bounded(one_of("text", "content"), "PDF files: send their text, or their pages as images"),
    "media_type": passed(one_of("text/plain"), "of a text"),
    "data": passed(_TEXT, "the text"),
    "content": passed(_any, "text, or blocks of text and images"),
    "url": refused("vLLM does not read files; send their text, or their pages as images"),
    "file_id": refused("Florin stores no files; send the text itself"),
}
_CITES = dropped("answers have no citations; `enabled` is refused", _no_citations)
BLOCKS: Mapping[str, Table] = {
    "text": {
        "text": passed(_TEXT, "text"),
        "citations": dropped("templates do not render them"),
        "cache_control": _CACHED,
    },
    "image": {
        "source": bounded(_source, "sent as `image_url`: base64, or a URL that the operator allows"),
        "transformations": dropped("the model's own image processor decides"),
        "cache_control": _CACHED,
    },
    "document": {
        "source": bounded(an_object(DOCUMENT_SOURCE), "sent as text and images"),
        "title": passed(_TEXT, "sent as a line of text before it"),
        "context": passed(_TEXT, "sent as a line of text before it"),
        "citations": _CITES,
        "cache_control": _CACHED,
    },
    "search_result": {
        "content": passed(_any, "blocks of text, sent as text"),
        "source": passed(_TEXT, "sent as a line of text before it"),
        "title": passed(_TEXT, "sent as a line of text before it"),
        "citations": _CITES,
        "cache_control": _CACHED,
    },
    "thinking": {
        "thinking": passed(_TEXT, "sent as the message's `reasoning`, for templates that render it"),
        "signature": dropped("engines do not sign what they think"),
    },
    "redacted_thinking": {"data": dropped("only Anthropic can decrypt it")},
    "tool_use": {
        "id": passed(_TEXT, "sent as the id of a tool call"),
        "name": passed(_TEXT, "the tool's name"),
        "input": passed(that(lambda v: type(v) is dict, "be an object"), "the arguments, sent as JSON"),
        "caller": _CALLERS,
        "toolset_name": dropped("there are no toolsets"),
        "cache_control": _CACHED,
    },
    "tool_result": {
        "tool_use_id": passed(_TEXT, "the id of the call"),
        "content": passed(_any, "text, or blocks: texts become a message of role `tool`, images follow it"),
        "is_error": passed(switch, "`Error: ` is put before the text"),
        "toolset_name": dropped("there are no toolsets"),
        "cache_control": _CACHED,
    },
    "tool_reference": {
        "tool_name": passed(_TEXT, "sent as text: all tools are shown to the model anyway"),
        "cache_control": _CACHED,
    },
}
"""By type: the fields of blocks that engines can be sent."""
REFUSED_BLOCKS: Mapping[str, Rule] = {
    "server_tool_use": refused(_HISTORY),
    "web_search_tool_result": refused(_HISTORY),
    "web_fetch_tool_result": refused(_HISTORY),
    "code_execution_tool_result": refused(_HISTORY),
    "bash_code_execution_tool_result": refused(_HISTORY),
    "text_editor_code_execution_tool_result": refused(_HISTORY),
    "tool_search_tool_result": refused(_HISTORY),
    "mcp_tool_use": refused(_HISTORY),
    "mcp_tool_result": refused(_HISTORY),
    "container_upload": refused("Florin has no containers"),
    "compaction": refused("Florin does not compact conversations"),
    "browser_state": refused("it belongs to a tool that only Anthropic's models know"),
}


# -- tools

TOOL: Table = {
    "name": passed(_TEXT, "the function's name"),
    "description": passed(_TEXT, "rendered by the template"),
    "input_schema": passed(_any, "a JSON schema, sent as the function's `parameters` within their bounds"),
    "strict": passed(switch, "whether the call must follow the schema"),
    "type": replaced("tools of your own have none, or `custom`"),
    "cache_control": _CACHED,
    "defer_loading": dropped("all tools are shown to the model"),
    "eager_input_streaming": dropped("arguments are always streamed as they are generated"),
    "input_examples": dropped("templates do not render them"),
    "allowed_callers": _CALLERS,
}
TRAINED_TOOLS: Final = ("bash_", "text_editor_", "computer_", "memory_", "browser_")
"""Beginnings of types of tools that a client runs, but declares without a schema."""


def tool_refusal(kind: object) -> WrongError:
    """For a tool that is not the client's own."""
    trained = type(kind) is str and kind.startswith(TRAINED_TOOLS)
    return WrongError(_TRAINED if trained else _SERVER, path="type", code="unsupported_parameter")


TOOL_CHOICE: Table = {
    "type": bounded(one_of("auto", "any", "tool", "none"), "`any` is sent as `required`"),
    "name": passed(_TEXT, "of the tool to call"),
    "disable_parallel_tool_use": passed(switch, "sent as `parallel_tool_calls`"),
}


# -- everything else

THINKING: Table = {
    "type": bounded(
        one_of("enabled", "disabled", "adaptive", "between_tools"),
        "`enabled` and `disabled` are sent to the template as `enable_thinking` and `thinking`",
    ),
    "budget_tokens": dropped("engines without a parser for reasoning refuse a budget; `max_tokens` counts"),
    "display": dropped("what the model thinks is shown as far as the engine tells it apart"),
}
OUTPUT_FORMAT: Table = {
    "type": bounded(one_of("json_schema"), "that API's only format"),
    "schema": passed(_any, "a JSON schema, within the bounds of `response_format`"),
}
OUTPUT_CONFIG: Table = {
    "effort": bounded(one_of(*EFFORTS), "sent as `reasoning_effort`"),
    "format": bounded(an_object(OUTPUT_FORMAT), "sent as `response_format`"),
    "task_budget": dropped("a hint for Anthropic's models"),
}
METADATA: Table = {
    "user_id": passed(_TEXT, "the end user, in reports and for canaries; not sent"),
    "tag": passed(_any, "in reports by tag; not sent"),
}
MUST: Final = "be a non-empty list of messages, each an object with a `role` and `content`"


def _turns(value: Any, _: FieldReading) -> Any:
    if type(value) is not list or not 0 < len(value) <= MAX_TURNS:
        raise WrongError(MUST)
    return value


PROMPT: dict[str, Rule] = {
    "model": replaced("with the name of the version on the engine", text()),
    "messages": bounded(_turns, "see below; turns of one role that follow each other are joined"),
    "system": passed(_any, "text, or blocks of text; the first message, of role `system`"),
    "tools": bounded(a_list(_any, 1024, "tools"), "see below; within the bounds of chat's"),
    "tool_choice": bounded(an_object(TOOL_CHOICE), "see below"),
    "thinking": bounded(an_object(THINKING), "see below"),
    "output_config": bounded(an_object(OUTPUT_CONFIG), "see below"),
    "cache_control": _CACHED,
    "context_management": dropped("the prompt is sent whole; the model's context length is its limit"),
    "mcp_servers": refused("Florin calls no other servers; run the tools in your application", []),
    "speed": dropped(_HINT),
    "user_profile_id": dropped(_HINT),
    "workspace_id": dropped(_HINT),
}
"""What a message and a count of its tokens have in common."""
MESSAGES: dict[str, Rule] = {
    **PROMPT,
    "max_tokens": bounded(integer(1), "number of tokens; required"),
    "stream": passed(switch, "format of the answer"),
    "temperature": bounded(number(0, 1), "Anthropic's range"),
    "top_p": bounded(number(0, 1), "a probability"),
    "top_k": bounded(integer(0), "number of tokens; 0 turns it off"),
    "stop_sequences": bounded(texts(MAX_STOP_STRINGS, 256), "sent as `stop`"),
    "metadata": bounded(an_object(METADATA), "see below"),
    "container": refused("Florin has no containers"),
    "inference_geo": refused("the operator decides where engines run"),
    "diagnostics": dropped("Florin does not compare prompts with earlier ones"),
    "service_tier": dropped(_HINT),
    "fallbacks": dropped("the model that was named answers, or none"),
}
PARTS: Mapping[str, Table] = {
    "tools": TOOL,
    "tool_choice": TOOL_CHOICE,
    "thinking": THINKING,
    "output_config": OUTPUT_CONFIG,
    "output_config.format": OUTPUT_FORMAT,
    "metadata": METADATA,
    "image.source": SOURCE,
    "document.source": DOCUMENT_SOURCE,
}
