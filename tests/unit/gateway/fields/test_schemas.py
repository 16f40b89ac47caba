"""JSON schemas and tools: what one request may have engines compile."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.dataplane.request import parse
from gateway.fields.rule import FieldPolicy
from tests.unit.gateway.fields.test_tables import BODIES, CHAT, COMPLETIONS, ask, refusal

PLAIN = {"type": "string"}


def props(count: int, each: Any = PLAIN, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": each for i in range(count)}, **more}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


GOOD = {
    "1,000 properties": props(1000),
    "60 levels": nested(60),
    "4,000 values": {"enum": list(range(4000))},
    "a million items": {"type": "array", "items": PLAIN, "minItems": 10**6, "maxItems": 10**6},
    "16 lengths": props(16, {"type": "string", "minLength": 1, "maxLength": 10**6}),
    "32 formats": props(32, {"type": "string", "format": "date"}),
    "64 counted": props(64, minProperties=32),
    "own parts": {"$ref": "#/$defs/a", "$defs": {"a": PLAIN}},
    "names like keywords": {
        "type": "object",
        "properties": {"pattern": PLAIN, "$ref": PLAIN, "maxLength": PLAIN},
    },
}
BAD = {
    "61 levels": (nested(61), "60 levels"),
    "bytes": ({"description": "a" * 65_536}, "65,536 bytes"),
    "4,001 objects": ({"anyOf": [{}] * 3999, "not": {}}, "4,000 objects"),
    "4,001 values": ({"enum": list(range(4001))}, "4,000 list entries"),
    "17 lengths": (props(17, {"maxLength": 5}), "16 `minLength`"),
    "33 formats": (props(33, {"format": "email"}), "32 `format`"),
    "65 counted": (props(65, maxProperties=3), "64 properties in objects with"),
    "counted in many": (props(9, props(8, minProperties=1)), "64 properties in objects with"),
    "pattern": ({"pattern": "a?" * 9}, "in a row"),
    "patterns of names": ({"patternProperties": {"a?" * 9: PLAIN}}, "in a row"),
    "expressions": (props(5, {"pattern": "a" * 2000}), "8,192 characters"),
    "elsewhere": ({"$ref": "http://10.0.0.1/schema"}, "only for its own parts"),
    "elsewhere, deep": (props(1, {"anyOf": [{"$ref": "file:///etc/passwd"}]}), "only for its own parts"),
}


def places(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """All fields that hold a schema to be compiled."""
    return [
        {"structured_outputs": {"json": schema}},
        {"structured_outputs": {"json": orjson.dumps(schema).decode()}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
    ]


def tool(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema, **more}}


@pytest.mark.parametrize("name", GOOD)
def test_schemas_within_the_bounds(name: str):
    for endpoint in (CHAT, COMPLETIONS):
        for fields in places(GOOD[name]):
            ask(endpoint, **fields)
    ask(CHAT, tools=[tool(GOOD[name])], tool_choice="required")


@pytest.mark.parametrize("name", BAD)
def test_schemas_beyond(name: str):
    schema, because = BAD[name]
    for endpoint in (CHAT, COMPLETIONS):
        for fields in places(schema):
            error = refusal(endpoint, **fields)
            assert because in error.message
            assert error.param.startswith(next(iter(fields)))
    demanded = {"type": "function", "function": {"name": "f"}}
    for more in ({"tool_choice": "required"}, {"tool_choice": demanded}):
        assert refusal(CHAT, tools=[tool(schema)], **more).param.startswith("tools")
    assert refusal(CHAT, tools=[tool(schema, strict=True)]).param.startswith("tools")


@pytest.mark.parametrize("name", [name for name in BAD if name != "61 levels"])
def test_tools_that_are_only_offered_are_only_printed(name: str):
    schema, _ = BAD[name]
    ask(CHAT, tools=[tool(schema)])
    ask(CHAT, tools=[tool(schema, strict=True)], tool_choice="none")


def test_the_bounds_are_of_all_schemas_together():
    half = props(9, {"maxLength": 5})
    ask(CHAT, structured_outputs={"json": half})
    assert (
        "16 `minLength`"
        in refusal(
            CHAT,
            structured_outputs={"json": half},
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": half}},
        ).message
    )
    assert refusal(CHAT, tools=[tool(half)] * 2, tool_choice="required").param == "tools"
    big = {"description": "a" * 100_000}
    ask(CHAT, tools=[tool(big)] * 2)
    assert "262,144 bytes" in refusal(CHAT, tools=[tool(big)] * 3).message


def test_a_schema_that_comes_as_a_string_is_sent_as_it_was_read():
    raw = b'{"model": "m", "prompt": "x", "structured_outputs": {"json": "{\\"a\\": 1, \\"a\\": 2}"}}'
    assert parse(COMPLETIONS, raw, FieldPolicy()).body["structured_outputs"] == {"json": {"a": 2}}


def test_tools_of_a_developers_message_count_too():
    message = {"role": "developer", "content": "x", "tools": [tool({"enum": list(range(33_000))})]}
    assert refusal(CHAT, messages=[message]).param.startswith("messages[0].tools[0].function.parameters")
    assert BODIES[CHAT.path]["messages"]
