"""The tools of a request to /v1/responses, as functions of a chat.

A chat has no namespaces: a tool of one is sent as a function whose name begins with the namespace's. `names`
says what the client calls each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.fields.checks import a_list, an_object, one_of, switch, text, that
from gateway.fields.grammars import MAX_TOOLS
from gateway.fields.response_items import refusal
from gateway.fields.rule import FieldReading, Table, WrongError, bounded, dropped, passed, read, refused

_TEXT = text()
_TYPE = passed(_TEXT, "says what it is")
_IS_OBJECT = that(lambda v: type(v) is dict, "be an object")

CUSTOM_INPUT = "input"
"""The only parameter of the function that stands for a custom tool."""
_MOST_GRAMMAR = 16 * 1024
GRAMMAR: Table = {
    "type": passed(one_of("text", "grammar"), "says what it is"),
    "syntax": passed(one_of("lark", "regex"), "the grammar's language"),
    "definition": bounded(text(_MOST_GRAMMAR), "told to the model in the description, but not enforced"),
}


def _custom_schema(grammar: Mapping[str, Any]) -> dict[str, Any]:
    description = "The tool's input, as it is."
    if grammar.get("definition"):
        syntax = grammar.get("syntax", "lark")
        description += f" It must match this grammar ({syntax}):\n{grammar['definition']}"
    return {
        "type": "object",
        "properties": {CUSTOM_INPUT: {"type": "string", "description": description}},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }


_NAME = bounded(text(256), "rendered and compiled")
_TOOL: Table = {
    "type": _TYPE,
    "name": _NAME,
    "description": passed(_TEXT, "rendered by the template"),
    "defer_loading": passed(switch, "whether the template renders it at once"),
    "allowed_callers": refused("there is no other caller than the model", ["direct"]),
    "async": dropped("the client runs its tools"),
}
_FUNCTIONS: dict[str, Table] = {
    "function": {
        **_TOOL,
        "parameters": bounded(_IS_OBJECT, "a JSON schema"),
        "strict": passed(switch, "whether the call must follow the schema; not if absent"),
        "output_schema": dropped("models on vLLM do not see it"),
    },
    "custom": {**_TOOL, "format": bounded(an_object(GRAMMAR), "sent as a function with one string")},
}
_OURS = "Florin runs no tools; offer a function, and call the tool from your application"
REFUSED_TOOLS: dict[str, str] = dict.fromkeys(
    (
        "apply_patch", "code_interpreter", "computer", "computer_use_preview", "file_search",
        "image_generation", "local_shell", "mcp", "programmatic_tool_calling", "shell", "tool_search",
        "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11",
    ),
    _OURS,
)  # fmt: skip


def _function(value: Any, reading: FieldReading) -> dict[str, Any]:
    """A chat's function for a function or a custom tool."""
    kind, function = _read(_FUNCTIONS, value, reading)
    if kind == "custom":
        function["parameters"] = _custom_schema(function.pop("format", {}))
    return function


def _read(tables: Mapping[str, Table], value: Any, reading: FieldReading) -> tuple[str, dict[str, Any]]:
    """A tool's type and its other fields."""
    kind: Any = value.get("type") if type(value) is dict else None
    table = tables.get(kind) if type(kind) is str else None
    if table is None:
        raise refusal(kind, REFUSED_TOOLS, ", ".join(f"`{kind}`" for kind in tables))
    fields = read(table, value, reading)
    if not fields.get("name"):
        raise WrongError("be given", path="name")
    del fields["type"]
    return kind, fields


TOOLS: dict[str, Table] = {
    **_FUNCTIONS,
    "namespace": {
        "type": _TYPE,
        "name": bounded(text(256), "begins the name of each of its tools: `crm` and `find` are `crm__find`"),
        "description": dropped("each of its tools has one"),
        "tools": bounded(a_list(_function, MAX_TOOLS, "tools"), "functions and custom tools"),
    },
}
"""By type."""


def _tool(value: Any, reading: FieldReading) -> list[dict[str, Any]]:
    """The functions of a chat for a tool: several for a namespace."""
    if type(value) is not dict or value.get("type") != "namespace":
        return [_function(value, reading)]
    _, namespace = _read(TOOLS, value, reading)
    if "tools" not in namespace:
        raise WrongError("be given", path="tools")
    return [
        function | {"name": sent_name(function["name"], namespace["name"])} for function in namespace["tools"]
    ]


_TOOLS = a_list(_tool, MAX_TOOLS, "tools")


def tools(value: Any, reading: FieldReading) -> list[dict[str, Any]]:
    """A chat's tools. Raises WrongError."""
    functions = [function for given in _TOOLS(value, reading) for function in given]
    if len(functions) > MAX_TOOLS:
        raise WrongError(f"have at most {MAX_TOOLS:,} tools in all")
    if any(tool.get("type") == "namespace" for tool in value):  # or calls could not be told apart
        for name, count in Counter(function["name"] for function in functions).items():
            if count > 1:
                raise WrongError(f"not have two tools that are called `{name[:200]}`")
    return [{"type": "function", "function": function} for function in functions]


@dataclass(frozen=True, slots=True)
class ToolName:
    """What the client calls a tool that a chat's model knows as a function."""

    name: str
    namespace: str = ""
    custom: bool = False


def sent_name(name: str, namespace: str | None) -> str:
    """The name of the function that the model gets."""
    return f"{namespace}__{name}" if namespace else name


def names(given: Iterable[Mapping[str, Any]]) -> dict[str, ToolName]:
    """For checked tools: the name of a function in the chat → the client's."""
    by_sent_name = {}
    for entry in given:
        namespace = entry["name"] if entry["type"] == "namespace" else ""
        for tool in entry["tools"] if namespace else (entry,):
            name = ToolName(tool["name"], namespace, tool["type"] == "custom")
            by_sent_name[sent_name(tool["name"], namespace)] = name
    return by_sent_name


def tool_choice(value: Any, _: FieldReading) -> Any:
    """The chat's choice. Raises WrongError."""
    if type(value) is not dict:
        return value
    if value.get("type") != "allowed_tools":
        return _named(value, "be `none`, `auto`, `required`, `allowed_tools`, or")
    mode, tools = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise WrongError("be `auto` or `required`", path="mode")
    if type(tools) is not list:
        raise WrongError("be a list", path="tools")
    named = []
    for i, tool in enumerate(tools):
        try:
            named.append(_named(tool, "be"))
        except WrongError as error:
            raise error.under(f"tools[{i}]") from None
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}


def _named(value: Any, must: str) -> dict[str, Any]:
    """A tool of the chat for one that is named by the client."""
    given = value if type(value) is dict else {}
    kind, name, namespace = given.get("type"), given.get("name"), given.get("namespace")
    if type(kind) is not str or kind not in _FUNCTIONS or type(name) is not str:
        raise WrongError(f"{must} a function or custom tool by `type` and `name`")
    if namespace is not None and type(namespace) is not str:
        raise WrongError("have a namespace that is text")
    return {"type": "function", "function": {"name": sent_name(name, namespace)}}
