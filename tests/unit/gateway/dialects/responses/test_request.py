"""The chat that an engine gets for a request to /v1/responses."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dataplane.request import Call, parse
from gateway.dialects.responses.endpoint import RESPONSES as ENDPOINT
from gateway.errors import FlorinError
from gateway.fields.responses import RESPONSES
from gateway.fields.rule import FieldPolicy
from gateway.fields.tables import CHAT
from gateway.routing.resume import obstacle
from tests.support.search import examples

PNG = "data:image/png;base64,AA=="
TEXT = {"type": "input_text", "text": "What is it?"}
IMAGE = {"type": "input_image", "image_url": PNG, "detail": "auto"}
SENT_IMAGE = {"type": "image_url", "image_url": {"url": PNG}}
FUNCTION = {
    "type": "function",
    "name": "f",
    "description": "Does.",
    "parameters": {"type": "object"},
    "strict": False,
}


def ask(given: Any = "Hi", *, policy: FieldPolicy | None = None, **fields: Any) -> Call:
    body = orjson.dumps({"model": "support", "input": given} | fields)
    return parse(ENDPOINT, body, policy or FieldPolicy())


def messages(given: Any, **fields: Any) -> list[dict[str, Any]]:
    return ask(given, **fields).body["messages"]


def said(text: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "content": [part],
    } | fields


def call(name: str = "f", call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": "{}"}


def tool_call(name: str = "f", call_id: str = "c1", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def thought(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content, "encrypted_content": None}


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("Hi", [USER]),
        ([USER], [USER]),
        ([{"type": "message", "id": "x", "status": None, **USER}], [USER]),
        ([{"role": "user", "content": [TEXT]}], [{"role": "user", "content": "What is it?"}]),
        ([{"role": "user", "content": []}], [{"role": "user", "content": ""}]),
        (
            [{"role": "user", "content": [TEXT, IMAGE]}],
            [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, SENT_IMAGE]}],
        ),
        ([{"role": "user", "content": [IMAGE]}], [{"role": "user", "content": [SENT_IMAGE]}]),
        ([{"role": "developer", "content": "Be"}, USER], [{"role": "system", "content": "Be"}, USER]),
        ([USER, {"role": "developer", "content": "Be"}], [USER, {"role": "system", "content": "Be"}]),
        ([USER, said("One"), USER], [USER, {"role": "assistant", "content": "One"}, USER]),
        (
            [said("One"), said("Two")],
            [{"role": "assistant", "content": "One"}, {"role": "assistant", "content": "Two"}],
        ),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
        ),
        (
            [thought("hm"), said("One"), call(), call("g", "c2")],
            [{
                "role": "assistant", "content": "One", "reasoning": "hm",
                "tool_calls": [tool_call(), tool_call("g", "c2")],
            }],
        ),
        (
            [call(), said("One"), {"type": "function_call_output", "call_id": "c1", "output": "3"}],
            [
                {"role": "assistant", "content": "One", "tool_calls": [tool_call()]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
            ],
        ),
        (
            [thought("a"), call(), {"type": "function_call_output", "call_id": "c1", "output": "3"}, thought("b"), call()],
            [
                {"role": "assistant", "content": None, "reasoning": "a", "tool_calls": [tool_call()]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
                {"role": "assistant", "content": None, "reasoning": "b", "tool_calls": [tool_call()]},
            ],
        ),
        (
            [{"type": "function_call_output", "call_id": "c1", "output": [TEXT, IMAGE]}],
            [{"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "What is it?"}, SENT_IMAGE]}],
        ),
        (
            [{"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": 'a "b"'},
             {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}],
            [{"role": "assistant", "content": None, "tool_calls": [tool_call("sh", "c1", '{"input":"a \\"b\\""}')]},
             {"role": "tool", "tool_call_id": "c1", "content": "ok"}],
        ),
        ([{"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAA"}, USER], [USER]),
        ([thought(""), USER], [USER]),
    ],
)  # fmt: skip
def test_items_are_messages(given: Any, sent: list[dict[str, Any]]):
    assert messages(given) == sent


def test_instructions_and_what_follows_of_the_system_are_one_message():
    given = [
        {"role": "developer", "content": "a"},
        {"role": "system", "content": "b"},
        USER,
        {"role": "system", "content": "c"},
    ]
    assert messages(given, instructions="Be.") == [
        {"role": "system", "content": "Be.\n\na\n\nb"}, USER, {"role": "system", "content": "c"},
    ]  # fmt: skip
    assert messages("Hi", instructions="") == [USER]
    parts = [{"role": "developer", "content": [TEXT, TEXT]}]
    assert messages(parts, instructions="Be.") == [
        {"role": "system", "content": "Be.\n\nWhat is it?\n\nWhat is it?"}
    ]
    parts = [{"role": "developer", "content": [TEXT, IMAGE]}]
    assert [m["role"] for m in messages(parts, instructions="Be.")] == ["system", "system"]


def test_instructions_alone_are_no_input():
    for body in ({"model": "support", "instructions": "Be."}, {"model": "support", "input": None}):
        with pytest.raises(FlorinError) as caught:
            parse(ENDPOINT, orjson.dumps(body), FieldPolicy())
        assert caught.value.param == "input"


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"max_output_tokens": 7}, {"max_completion_tokens": 7}),
        ({"temperature": 0, "top_p": 0.5, "stream": True}, {"temperature": 0, "top_p": 0.5, "stream": True}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": None, "text": None, "tools": None, "include": None, "store": None}, {}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True, "description": "d"}}},
            {"response_format": {
                "type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True, "description": "d"}
            }},
        ),
        ({"top_logprobs": 0}, {"top_logprobs": 0}),
        ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"include": ["reasoning.encrypted_content"], "store": False, "truncation": "auto"}, {}),
        ({"tool_choice": "auto", "parallel_tool_calls": True, "tools": []}, {"parallel_tool_calls": True}),
        ({"tool_choice": "none"}, {}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"background": False, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "prompt_cache_key": "k"}, {}),
        ({"top_k": 5, "seed": 1, "ignore_eos": True}, {"top_k": 5, "seed": 1, "ignore_eos": True}),
    ],
)  # fmt: skip
def test_options(fields: dict[str, Any], sent: dict[str, Any]):
    assert ask(**fields).body == {"messages": [USER], **sent}


def test_tools():
    custom = {"type": "custom", "name": "sh", "description": "Runs.", "format": {"type": "text"}}
    sent = ask(tools=[FUNCTION, custom], tool_choice={"type": "custom", "name": "sh"}).body
    function, shell = (tool["function"] for tool in sent["tools"])
    assert function == {name: value for name, value in FUNCTION.items() if name != "type"}
    assert (shell["name"], shell["description"]) == ("sh", "Runs.")
    assert shell["parameters"]["required"] == ["input"]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "sh"}}


SHELL = {"type": "custom", "name": "shell", "description": "Runs."}
AGENTS = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [FUNCTION, SHELL]}


def test_a_namespaces_tools_have_its_name():
    """As Codex sends them."""
    sent = ask([call() | {"namespace": "agents"}], tools=[FUNCTION, AGENTS])
    functions = [tool["function"] for tool in sent.body["tools"]]
    assert [function["name"] for function in functions] == ["f", "agents__f", "agents__shell"]
    assert functions[1] == functions[0] | {"name": "agents__f"}
    assert functions[2]["parameters"]["required"] == ["input"]
    assert sent.body["messages"][0]["tool_calls"] == [tool_call("agents__f")]
    assert not sent.unknown


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([AGENTS | {"name": ""}], "tools[0].name"),
        ([AGENTS | {"name": ["agents"]}], "tools[0].name"),
        ([AGENTS | {"tools": None}], "tools[0].tools"),
        ([AGENTS | {"tools": FUNCTION}], "tools[0].tools"),
        ([FUNCTION, AGENTS | {"tools": [FUNCTION, {"type": "mcp"}]}], "tools[1].tools[1].type"),
        ([AGENTS | {"tools": [AGENTS]}], "tools[0].tools[0].type"),
        ([AGENTS | {"tools": [FUNCTION | {"parameters": 5}]}], "tools[0].tools[0].parameters"),
        ([AGENTS | {"tools": [FUNCTION | {"name": None}]}], "tools[0].tools[0].name"),
        ([AGENTS, FUNCTION | {"name": "agents__f"}], "tools"),
        ([AGENTS, AGENTS], "tools"),
        ([AGENTS | {"name": f"a{i}", "tools": [FUNCTION] * 1} for i in range(129)], "tools"),
        ([AGENTS | {"name": f"a{i}"} for i in range(65)], "tools"),
    ],
)
def test_a_wrong_namespace_is_refused(tools: Any, param: str):
    with pytest.raises(FlorinError) as caught:
        ask(tools=tools)
    assert caught.value.param == param
    assert len(caught.value.message) < 600


def test_a_namespace_without_tools_has_none():
    assert [t["function"]["name"] for t in ask(tools=[AGENTS | {"tools": []}, FUNCTION]).body["tools"]] == [
        "f"
    ]


def test_no_namespace_is_chosen():
    with pytest.raises(FlorinError):
        ask(tools=[AGENTS], tool_choice={"type": "namespace", "name": "agents"})


def test_a_tool_of_a_namespace_is_chosen_with_it():
    choice = {"type": "function", "name": "f"}
    sent = ask(tools=[FUNCTION, AGENTS], tool_choice=choice | {"namespace": "agents"})
    assert sent.body["tool_choice"] == {"type": "function", "function": {"name": "agents__f"}}
    assert ask(tools=[FUNCTION, AGENTS], tool_choice=choice).body["tool_choice"]["function"] == {"name": "f"}
    with pytest.raises(FlorinError):
        ask(tools=[AGENTS], tool_choice=choice | {"namespace": 1})


def test_a_custom_tools_grammar_is_told_to_the_model():
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    sent = ask(tools=[{"type": "custom", "name": "patch", "format": grammar}]).body
    [field] = sent["tools"][0]["function"]["parameters"]["properties"].values()
    assert field["type"] == "string"
    assert field["description"].endswith('It must match this grammar (lark):\nstart: "a"')


def test_an_operator_who_allows_no_grammars_allows_none_here():
    policy = FieldPolicy(structured_outputs=False)
    schema = {"format": {"type": "json_schema", "name": "n", "schema": {}}}
    for fields, param in (
        ({"text": schema}, "text.format"),
        ({"tools": [FUNCTION], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [FUNCTION | {"strict": True}]}, "tools"),
    ):
        with pytest.raises(FlorinError) as caught:
            ask(policy=policy, **fields)
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", param)


def test_labels_are_a_chats():
    call_ = ask(metadata={"tag": "spring"}, safety_identifier="eve", user="u")
    assert (call_.tag, call_.end_user, call_.user) == ("spring", "eve", "u")


def test_a_stream_of_text_can_be_resumed():
    usual = {
        "store": False,
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
        "tools": [],
    }
    body = ask(
        stream=True, temperature=0.5, max_output_tokens=9, text={"format": {"type": "text"}}, **usual
    ).body
    assert obstacle(body) == ""


# -- whatever is sent

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["user", "message", "function", "text", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "format", "output"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
_ITEMS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["message", "function_call", "function_call_output", "reasoning", "custom_tool_call"]
        )
    },
    optional=dict.fromkeys(("role", "content", "call_id", "name", "arguments", "output", "input"), _VALUES),
)


@examples(80)
@given(
    st.dictionaries(st.sampled_from(sorted({*RESPONSES} - {"model", "input"})), _VALUES, max_size=3),
    _VALUES | st.lists(_ITEMS, min_size=1, max_size=3),
)
def test_whatever_is_asked_is_a_chat_or_refused(fields: dict[str, Any], given: Any):
    refusal = None
    try:
        call_ = ask(given, **fields)
    except FlorinError as error:
        refusal = error
    if refusal is not None:
        assert refusal.status == 400
        param = refusal.param or "input"
        assert param.partition(".")[0].partition("[")[0] in {*fields, "input"}
        return
    assert set(call_.body) <= {name for name, rule in CHAT.items() if rule.sends}
    assert call_.body["messages"]
