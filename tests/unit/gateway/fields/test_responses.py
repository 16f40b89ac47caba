"""Every row of the tables of /v1/responses, with values that pass and values that do not; and the tables
against the types of OpenAI's client."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import orjson
import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from openai.types.responses.response_input_content_param import ResponseInputContentParam
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.response_output_message_param import Content
from openai.types.responses.response_text_config_param import ResponseTextConfigParam
from openai.types.responses.tool_param import ToolParam
from openai.types.shared_params.reasoning import Reasoning

from gateway.dataplane.request import Call, parse
from gateway.dialects.responses.endpoint import RESPONSES as ENDPOINT
from gateway.errors import FlorinError
from gateway.fields import responses
from gateway.fields.response_items import ITEMS, PARTS, REFUSED_ITEMS
from gateway.fields.response_tools import REFUSED_TOOLS, TOOLS
from gateway.fields.responses import COPIED, RESPONSES
from gateway.fields.rule import FieldAction, FieldPolicy
from tests.unit.gateway.fields import samples

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}
USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
SAMPLES: dict[str, samples.Samples] = {
    "input": (["Hi", [USER]], [[], 5, {}, [5], [[]], [{}], [{"role": "user"}]]),
    "instructions": (["Be brief.", ""], [5, ["x"]]),
    "stream": samples.SHARED["stream"],
    "max_output_tokens": ([1, 2**31 - 1], [0, -1, "10", 1.5, True, 2**31]),
    "tools": (
        [[], [FUNCTION] * 128, [{"type": "custom", "name": "c", "format": {"type": "text"}}],
         [{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}]],
        [{}, [FUNCTION] * 129, ["f"], [{"type": "function"}], [{"type": ["function"]}], [{"type": "new"}],
         [{"type": "web_search"}], [FUNCTION | {"parameters": 5}], [FUNCTION | {"name": "x" * 257}],
         [FUNCTION | {"name": ""}], [FUNCTION | {"strict": 1}], [FUNCTION | {"allowed_callers": ["program"]}],
         [{"type": "custom", "name": "c", "format": {"type": "grammar", "definition": "x" * 20_000}}],
         [{"type": "custom", "name": "c", "format": {"type": "json"}}],
         [FUNCTION | {"parameters": {"enum": list(range(40_000))}}]],
    ),
    "tool_choice": (
        ["auto", "none"],
        ["all", 5, {"type": "allowed_tools", "mode": "auto", "tools": []}, {"type": "web_search"},
         {"type": ["function"], "name": "f"}, {"type": "function"}],
    ),
    "text": (
        [{}, {"verbosity": "low"}, {"format": {"type": "text"}}, {"format": {"type": "json_object"}},
         {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}}],
        [5, {"format": "text"}, {"format": {}}, {"format": {"type": "grammar"}}, {"verbosity": 5},
         {"format": {"type": "json_schema"}}, {"format": {"type": "json_schema", "schema": "{}"}},
         {"format": {"type": "json_schema", "schema": {"enum": list(range(4001))}}}],
    ),
    "reasoning": (
        [{}, {"effort": "low", "summary": "auto"}, {"mode": "standard"}],
        [5, {"effort": 5}, {"effort": "x" * 33}, {"mode": "pro"}, {"summary": 1}],
    ),
    "include": ([[], ["reasoning.encrypted_content"]], ["x", [5], ["x"] * 17, {}]),
    "truncation": (["auto", "disabled"], ["left", 5]),
    "metadata": (
        [{}, {"tag": "x", "b": "y" * 512}],
        [5, [], {"a": 1}, {"a": "x" * 513}, {"x" * 65: ""}, {str(i): "" for i in range(17)}],
    ),
    "stream_options": ([{}, {"include_obfuscation": True}], [5, {"include_obfuscation": 5}]),
    "prompt_cache_key": (["k"], [5, "x" * 1025]),
    "max_tool_calls": ([0, 5], [-1, "5"]),
    "store": ([True, False], ["no", 1]),
    **{name: samples.CHAT[name] for name in COPIED if name in samples.CHAT},
    **{name: ([f"some {name}"], samples.CHAT[name][1]) for name in ("user", "safety_identifier")},
    "model": (["support"], [7, ["a"], ""]),
}  # fmt: skip
CHECKED = [name for name, rule in RESPONSES.items() if rule.check is not None]


def ask(**fields: Any) -> Call:
    return parse(ENDPOINT, orjson.dumps({"model": "support", "input": "Hi"} | fields), FieldPolicy())


def refusal(**fields: Any) -> FlorinError:
    with pytest.raises(FlorinError) as caught:
        ask(**fields)
    assert caught.value.status == 400
    assert len(caught.value.message) < 600
    return caught.value


@pytest.mark.parametrize("name", CHECKED)
def test_a_field_is_accepted_within_its_bounds_only(name: str):
    good, bad = SAMPLES[name]
    for value in [*good, *([] if name in {"input", "model"} else [None])]:
        call = ask(**{name: value})
        assert not call.unknown
        if name in COPIED and value is not None and name != "top_logprobs":
            assert call.body.get(name, False) == value
    for value in bad:
        error = refusal(**{name: value})
        assert error.param.partition(".")[0].partition("[")[0] == name, value
        assert error.code in {"invalid_value", "unsupported_parameter"}


@pytest.mark.parametrize(
    "name", [name for name, rule in RESPONSES.items() if rule.action is FieldAction.DROP and not rule.check]
)
def test_a_field_is_dropped(name: str):
    for value in samples.DROPPED:
        call = ask(**{name: value})
        assert not call.unknown
        assert name not in orjson.loads(call.payload("fl-1", "salt")) or name == "cache_salt"


@pytest.mark.parametrize(
    "name", [name for name, rule in RESPONSES.items() if rule.action is FieldAction.REFUSE]
)
def test_a_field_is_refused_with_the_reason(name: str):
    rule = RESPONSES[name]
    for value in [*samples.DROPPED, *rule.harmless]:
        if any(type(v) is type(value) and v == value for v in rule.harmless):
            assert not ask(**{name: value}).unknown
        else:
            error = refusal(**{name: value})
            assert (error.code, error.param) == ("unsupported_parameter", name)
            assert rule.why in error.message


def test_unknown_fields_are_counted_on_every_level_and_not_sent():
    call = ask(
        new=1,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Hi", "new": 1}], "new": 1}],
        tools=[FUNCTION | {"new": 1}],
        text={"new": 1},
        reasoning={"new": 1},
    )
    assert call.unknown == 6
    assert set(call.unknown_names) == {"new"}
    assert b"new" not in call.payload("fl-1", "salt")


def test_the_operator_can_have_a_new_field_passed_on():
    body = orjson.dumps({"model": "support", "input": "Hi", "new": 1})
    assert parse(ENDPOINT, body, FieldPolicy(passed=frozenset({"new"}))).body["new"] == 1


# -- against OpenAI's client


def _by_type(union: Any) -> dict[str, list[set[str]]]:
    found: dict[str, list[set[str]]] = {}
    for one in get_args(union):
        hints = one.__annotations__
        for kind in _types(one):
            found.setdefault(kind, []).append(set(hints))
    return found


def _types(one: Any) -> tuple[str, ...]:
    words: list[str] = []
    pending = [get_type_hints(one)["type"]]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            words.append(each)
        pending += get_args(each)
    return tuple(words)


def test_no_field_of_openais_client_is_without_a_rule():
    assert set(ResponseCreateParamsBase.__annotations__) <= set(RESPONSES)
    assert set(Reasoning.__annotations__) <= set(responses.REASONING)
    assert set(ResponseTextConfigParam.__annotations__) <= set(responses.TEXT)


def test_no_item_of_openais_client_is_without_a_rule():
    theirs = _by_type(ResponseInputItemParam)
    assert set(theirs) == {*ITEMS, *REFUSED_ITEMS}
    for kind, table in ITEMS.items():
        for fields in theirs[kind]:
            assert fields <= set(table), kind


def test_no_tool_of_openais_client_is_without_a_rule():
    theirs = _by_type(ToolParam)
    assert set(theirs) == {*TOOLS, *REFUSED_TOOLS}
    for kind, table in TOOLS.items():
        for fields in theirs[kind]:
            assert fields <= set(table), kind


def test_no_part_of_openais_client_is_without_a_rule():
    theirs = _by_type(ResponseInputContentParam) | _by_type(Content)
    assert set(theirs) <= set(PARTS)
    for kind, each in theirs.items():
        for fields in each:
            assert fields <= set(PARTS[kind]), kind


# -- errors name the client's own fields


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [USER, 5]}, "input[1]"),
        ({"input": [USER, {"role": "robot", "content": ""}]}, "input[1].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": ["Hi"]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        (
            {"input": [USER, {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[1].content[0].image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "new"}]}, "input[0].type"),
        ({"input": [{"type": ["message"]}]}, "input[0].type"),
        ({"input": [CALL | {"arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "content": [{}]}]}, "input[0].content"),
        ({"tools": [FUNCTION, {"type": "mcp"}]}, "tools[1].type"),
        ({"tools": [FUNCTION | {"parameters": {"enum": [1] * 40_000}}]}, "tools[0].parameters"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "x" * 300}}, "tool_choice.name"),
        ({"text": {"format": {"type": "json_schema", "schema": {"enum": [1] * 4001}}}}, "text.format.schema"),
        ({"reasoning": {"effort": "x" * 33}}, "reasoning.effort"),
    ],
)
def test_an_error_names_the_clients_field(fields: dict[str, Any], param: str):
    error = refusal(**fields)
    assert error.param == param
    assert f"`{param}`" in error.message


@pytest.mark.parametrize(
    ("engines", "clients"),
    [
        ("max_tokens", "max_output_tokens"),
        ("max_completion_tokens", "max_output_tokens"),
        ("messages", "input"),
        ("messages[3].content", "input"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("response_format.type", "text.format.type"),
        ("tools[12].function.parameters", "tools[12].parameters"),
        ("reasoning_effort", "reasoning.effort"),
        ("temperature", "temperature"),
        ("messages_of_others", "messages_of_others"),
    ],
)
def test_an_engines_refusal_names_the_clients_field(engines: str, clients: str):
    error = FlorinError("request_refused", f"`{engines}` is wrong, says `vLLM`.", param=engines)
    for _ in range(2):
        ENDPOINT.rename(error)
        assert (error.param, error.message) == (clients, f"`{clients}` is wrong, says `vLLM`.")
