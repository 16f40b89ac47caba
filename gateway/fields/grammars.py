"""What an engine compiles into a grammar: JSON schemas, tools, choices, regular expressions.

Measured as in `schemas`: 1,000 choices of 60 characters take 0.5 s, of 10 characters 0.1 s. The cost of a
grammar written in a grammar language cannot be estimated from its text: one line with twelve optional classes
stops the engine for 2.5 s at one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.fields.checks import a_list, an_object, one_of, switch, text
from gateway.fields.json_schemas import compiled_tools, schema
from gateway.fields.patterns import objection
from gateway.fields.rule import Check, FieldReading, Table, WrongError, bounded, passed, refused

MAX_TOOLS = 128
"""OpenAI's limit."""
MAX_CHOICES = 1000
MAX_CHOICE_CHARACTERS = 64 * 1024
MAX_GRAMMAR = 16 * 1024

_OFF = "the operator has not allowed answers that a grammar constrains"


# -- tools

FUNCTION: Table = {
    "name": bounded(text(256), "rendered and compiled"),
    "description": passed(text(), "rendered by the template"),
    "parameters": bounded(schema(rendered=True), "a JSON schema"),
    "strict": passed(switch, "whether the call must follow the schema"),
    "defer_loading": passed(switch, "whether the template renders it at once"),
}
TOOL: Table = {
    "type": bounded(one_of("function"), "vLLM has no other tools"),
    "function": bounded(an_object(FUNCTION), "what can be called"),
    "defer_loading": passed(switch, "whether the template renders it at once"),
}
_TOOL = an_object(TOOL)


def _tool(value: Any, reading: FieldReading) -> Any:
    tool = _TOOL(value, reading)
    if "function" not in tool:
        hint = "; a tool whose `name` is beside its `type` is for /v1/responses" if "name" in value else ""
        raise WrongError(f"be an object with the function's `name`{hint}", path="function")
    return tool


TOOLS = a_list(_tool, MAX_TOOLS, "tools")
CHOSEN_FUNCTION: Table = {"name": passed(text(256), "one of `tools`")}
CHOSEN: Table = {
    "type": passed(one_of("function"), "vLLM has no other tools"),
    "function": passed(an_object(CHOSEN_FUNCTION), "the function to call"),
}
_WORDS = one_of("none", "auto", "required")
_NAMED = an_object(CHOSEN)
ALLOWED: Table = {
    "mode": passed(one_of("auto", "required"), "the choice among the allowed tools"),
    "tools": bounded(a_list(_NAMED, MAX_TOOLS, "tools"), "those of `tools` that the model is shown"),
}
_ALLOWED = an_object({"type": passed(text(), ""), "allowed_tools": passed(an_object(ALLOWED), "")})


def tool_choice(value: Any, reading: FieldReading) -> Any:
    if type(value) is not dict:
        return _WORDS(value, reading)
    return (_ALLOWED if value.get("type") == "allowed_tools" else _NAMED)(value, reading)


def allow_tools(sent: dict[str, Any]) -> None:
    """For a choice among allowed tools, which engines do not know: keep only these, and their mode as the
    choice. Raises WrongError."""
    choice = sent.get("tool_choice")
    if type(choice) is not dict or choice.get("type") != "allowed_tools":
        return
    allowed, where = choice.get("allowed_tools", {}), "tool_choice.allowed_tools"
    if "mode" not in allowed or not allowed.get("tools"):
        raise WrongError("have a `mode` and a list of `tools` that is not empty", path=where)
    tools = {tool["function"].get("name"): tool for tool in sent.get("tools", ())}
    names = [tool.get("function", {}).get("name") for tool in allowed["tools"]]
    for i, name in enumerate(names):
        if name not in tools:
            raise WrongError("name one of `tools`", path=f"{where}.tools[{i}]")
    sent["tools"] = [tool for name, tool in tools.items() if name in names]
    sent["tool_choice"] = allowed["mode"]


def check_tools(sent: Mapping[str, Any], reading: FieldReading) -> None:
    """Raises WrongError if the engine would compile the tools, not just render them, and that costs too
    much."""
    choice = sent.get("tool_choice")
    strict = any((tool.get("function") or {}).get("strict") for tool in sent.get("tools") or ())
    if choice == "required" or type(choice) is dict or (strict and choice != "none"):
        if not reading.policy.structured_outputs:
            name = "tools" if choice in (None, "auto") else "tool_choice"
            raise WrongError(_OFF, path=name, code="unsupported_parameter")
        reason = compiled_tools(reading)
        if reason:
            raise WrongError(reason, path="tools")


# -- structured outputs


def _choices(value: Any, _: FieldReading) -> Any:
    if (
        type(value) is not list
        or not 0 < len(value) <= MAX_CHOICES
        or not all(type(choice) is str for choice in value)
        or sum(map(len, value)) > MAX_CHOICE_CHARACTERS
    ):
        raise WrongError(
            f"list 1 to {MAX_CHOICES:,} strings with at most {MAX_CHOICE_CHARACTERS:,} characters in total"
        )
    return value


def _regex(value: Any, _: FieldReading) -> Any:
    if type(value) is not str:
        raise WrongError("be a regular expression")
    reason = objection(value)
    if reason:
        raise WrongError(reason)
    return value


_FREE = (
    "a grammar of a few lines can delay every token of all requests on its engine; use a JSON schema, "
    "`choice` or `regex` (the operator can allow it to clients whom it trusts: FLORIN_PASS_FIELDS)"
)


def _free(name: str, check: Check) -> Check:
    """Refuses the field unless the operator has allowed it."""

    def allowed(value: Any, reading: FieldReading) -> Any:
        if name not in reading.policy.passed:
            raise WrongError(_FREE, code="unsupported_parameter")
        return check(value, reading)

    return allowed


OPTIONAL = (
    "structured_outputs.grammar",
    "structured_outputs.structural_tag",
    "response_format.structural_tag",
)
"""What FLORIN_PASS_FIELDS can allow besides unknown fields."""
_SOURCE = text(MAX_GRAMMAR)

STRUCTURED_OUTPUTS: Table = {
    "json": bounded(schema(), "a JSON schema"),
    "regex": bounded(_regex, "a regular expression"),
    "choice": bounded(_choices, "the possible answers"),
    "json_object": passed(switch, "any JSON object"),
    "grammar": bounded(_free(OPTIONAL[0], _SOURCE), _FREE),
    "structural_tag": bounded(_free(OPTIONAL[1], _SOURCE), _FREE),
    "whitespace_pattern": refused("the operator sets it"),
    "disable_any_whitespace": passed(switch, "format of the answer"),
    "disable_additional_properties": passed(switch, "format of the answer"),
}
JSON_SCHEMA: Table = {
    "name": passed(text(256), "the schema's name"),
    "description": passed(text(), "the schema's purpose"),
    "schema": bounded(schema(), "a JSON schema"),
    "strict": passed(switch, "vLLM is always strict"),
}
RESPONSE_FORMAT: Table = {
    "type": bounded(one_of("text", "json_object", "json_schema"), "`structural_tag` only if allowed"),
    "json_schema": bounded(an_object(JSON_SCHEMA), "for type `json_schema`"),
    "format": refused(_FREE),
    "structures": refused(_FREE),
    "triggers": refused(_FREE),
}
_FORMAT = an_object(RESPONSE_FORMAT)
_OUTPUTS = an_object(STRUCTURED_OUTPUTS)


def _structural_tag(value: Any, _: FieldReading) -> Any:
    try:
        size = len(orjson.dumps(value))
    except TypeError:  # nested too deeply to serialize
        size = MAX_GRAMMAR + 1
    if size > MAX_GRAMMAR:
        raise WrongError(f"have at most {MAX_GRAMMAR:,} bytes")
    return value


_TAG = _free(OPTIONAL[2], _structural_tag)


def structured_outputs(value: Any, reading: FieldReading) -> Any:
    if not reading.policy.structured_outputs:
        raise WrongError(_OFF, code="unsupported_parameter")
    return _OUTPUTS(value, reading)


def response_format(value: Any, reading: FieldReading) -> Any:
    if type(value) is dict and value.get("type") != "text" and not reading.policy.structured_outputs:
        raise WrongError(_OFF, code="unsupported_parameter")
    if type(value) is dict and value.get("type") == "structural_tag":
        return _TAG(value, reading)
    return _FORMAT(value, reading)
