"""Requests to /v1/messages as chats: every field, and the tables against the SDK's own."""

from __future__ import annotations

import re
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dataplane.request import Call, parse
from gateway.dialects.messages.endpoint import MESSAGES
from gateway.errors import FlorinError
from gateway.fields import anthropic_messages as fields
from gateway.fields.rule import FieldAction, FieldPolicy
from tests.support.lazily import ImportedWhenUsed
from tests.support.search import examples
from tests.unit.gateway.dialects.messages import samples

anthropic = ImportedWhenUsed("anthropic")

BODY = {"model": "support", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


def ask(**given: Any) -> Call:
    return parse(MESSAGES, orjson.dumps(BODY | given), FieldPolicy())


def refusal(**given: Any) -> FlorinError:
    with pytest.raises(FlorinError) as caught:
        ask(**given)
    return caught.value


def sent(**given: Any) -> dict[str, Any]:
    body = ask(**given).body
    del body["max_tokens"]
    return body


def chat(*messages: dict[str, Any], **given: Any) -> list[dict[str, Any]]:
    return ask(messages=list(messages), **given).body["messages"]


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


# -- every field


@pytest.mark.parametrize("name", fields.MESSAGES)
def test_a_field_is_accepted_within_its_bounds_only(name: str):
    good, bad = samples.MESSAGES[name]
    for value in good:
        assert not ask(**{name: value}).unknown, value
    if bad is None:
        assert fields.MESSAGES[name].action is FieldAction.DROP
        assert ask(**{name: [1, {"a": None}]}).body == ask().body
    for value in bad or ():
        error = refusal(**{name: value})
        assert error.status == 400
        assert error.code in {"invalid_value", "unsupported_parameter", "media_not_allowed"}
        assert re.match(rf"{name}\b", error.param or ""), (value, error.param)
        assert error.message.startswith(f"`{error.param}` "), error.message
        assert len(error.message) < 600


def typed(union: Any) -> list[Any]:
    """The dictionaries in a union."""
    found = [one for part in get_args(union) for one in typed(part)]
    return found or ([union] if hasattr(union, "__required_keys__") else [])


def test_no_field_of_the_sdk_is_without_a_rule():
    asked = (
        anthropic.types.message_create_params.MessageCreateParamsStreaming.__annotations__
        | anthropic.types.message_create_params.MessageCreateParamsNonStreaming.__annotations__
    )
    assert asked.keys() - fields.MESSAGES.keys() == set()
    counted = anthropic.types.MessageCountTokensParams.__annotations__.keys()
    assert counted - fields.PROMPT.keys() == set()
    for table, theirs in {
        "tools": anthropic.types.ToolParam,
        "metadata": anthropic.types.MetadataParam,
        "output_config": anthropic.types.OutputConfigParam,
        "output_config.format": anthropic.types.JSONOutputFormatParam,
    }.items():
        assert theirs.__annotations__.keys() - fields.PARTS[table].keys() == set(), table
    for table, union in {
        "tool_choice": anthropic.types.ToolChoiceParam,
        "thinking": anthropic.types.ThinkingConfigParam,
    }.items():
        for theirs in typed(union):
            assert theirs.__annotations__.keys() - fields.PARTS[table].keys() == set(), theirs


def test_no_block_of_the_sdk_is_without_a_rule():
    found = typed(anthropic.types.ContentBlockParam)
    assert len(found) > 10
    for theirs in [*found, anthropic.types.ToolReferenceBlockParam]:
        names = dict(theirs.__annotations__)
        kind = re.search(r"'([a-z_]+)'", str(names.pop("type")))
        assert kind is not None
        if kind[1] not in fields.REFUSED_BLOCKS:
            assert names.keys() - fields.BLOCKS[kind[1]].keys() == set(), kind[1]


# -- what becomes of them


def test_the_system_prompt_comes_first_and_without_the_attribution_that_changes_with_each_request():
    assert chat(user(text("Hi")), system="Be brief.")[0] == {"role": "system", "content": "Be brief."}
    blocks = [text("x-anthropic-billing-header: cc_version=2; cch=f00;"), text("You are"), text("Be brief.")]
    assert chat(user(text("Hi")), system=blocks)[0] == {"role": "system", "content": "You are\nBe brief."}
    assert chat(user(text("Hi")), system=blocks[:1]) == [{"role": "user", "content": "Hi"}]
    both = chat({"role": "system", "content": "b"}, user(text("Hi")), system="a")
    assert both[0] == {"role": "system", "content": "a\nb"}


def test_turns_of_one_role_are_one_and_text_alone_is_a_string():
    assert chat(
        user(text("a"), text("b")),
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": [text("d"), text("e")]},
        {"role": "system", "content": "f"},
        user(text("g")),
    ) == [
        {"role": "user", "content": "a\nb\nc"},
        {"role": "assistant", "content": "de"},
        {"role": "user", "content": "f\ng"},
    ]


PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
SENT_PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def test_images_are_data_urls_in_their_place():
    assert chat(user(text("a"), PNG, text("b"))) == [
        {"role": "user", "content": [text("a"), SENT_PNG, text("b")]}
    ]


def test_an_image_from_elsewhere_follows_the_policy():
    image = {"type": "image", "source": {"type": "url", "url": "HTTPS://Img.example.com/a.png"}}
    raw = orjson.dumps(BODY | {"messages": [user(image)]})
    call = parse(MESSAGES, raw, FieldPolicy(media_hosts=frozenset({"img.example.com"})))
    assert call.body["messages"][0]["content"][0]["image_url"]["url"] == "https://img.example.com/a.png"
    assert refusal(messages=[user(text("a"), image)]).param == "messages[0].content[1].source.url"


def test_as_many_images_as_in_a_chat():
    assert len(chat(user(*[PNG] * 64))[0]["content"]) == 64
    assert refusal(messages=[user(*[PNG] * 65)]).param == "messages"


def test_a_round_of_tools():
    called = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"city": "Oslo", "n": [1]}}
    other = {"type": "tool_use", "id": "toolu_2", "name": "f", "input": {}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    assert chat(
        user(text("Weather?")),
        {"role": "assistant", "content": [thought, text("Let me see."), called, other]},
        user(
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("4 °C"), PNG, text("wind")]},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such city", "is_error": True},
            text("And tomorrow?"),
        ),
    ) == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning": "hm",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"city":"Oslo","n":[1]}'},
                },
                {"id": "toolu_2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "4 °C\nwind"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no such city"},
        {"role": "user", "content": [SENT_PNG, text("And tomorrow?")]},
    ]


def test_what_is_said_before_a_result_stays_before_it():
    result = {"type": "tool_result", "tool_use_id": "t", "content": "1"}
    assert chat(user(text("a"), result, text("b"), result)) == [
        {"role": "user", "content": "a"},
        {"role": "tool", "tool_call_id": "t", "content": "1"},
        {"role": "user", "content": "b"},
        {"role": "tool", "tool_call_id": "t", "content": "1"},
    ]
    assert chat(user(result)) == [{"role": "tool", "tool_call_id": "t", "content": "1"}]


def test_a_call_without_words_has_no_content():
    (message,) = chat({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]})
    assert message["content"] is None


def test_documents_are_text():
    source = {"type": "text", "media_type": "text/plain", "data": "Body."}
    document = {"type": "document", "title": "Title", "context": "About.", "source": source}
    result = {"type": "search_result", "title": "T", "source": "https://a/", "content": [text("x")]}
    assert chat(user(document, result, text("Why?"))) == [
        {"role": "user", "content": "Title\nAbout.\nBody.\nT\nhttps://a/\nx\nWhy?"}
    ]


def test_tools_are_functions():
    tool = {**samples.TOOL, "strict": True, "cache_control": {"type": "ephemeral"}}
    schema = samples.TOOL["input_schema"]
    function = {"name": "f", "description": "d", "parameters": schema, "strict": True}
    assert sent(tools=[tool])["tools"] == [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_the_choice_of_a_tool(choice: dict[str, Any], wanted: dict[str, Any]):
    body = sent(tools=[samples.TOOL], tool_choice=choice)
    del body["messages"], body["tools"]
    assert body == wanted


def test_everything_else():
    body = sent(
        stop_sequences=["x"], temperature=0.5, top_p=0.9, top_k=5, stream=True,
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        thinking={"type": "disabled"}, metadata={"user_id": "u7", "tag": "t"},
    )  # fmt: skip
    del body["messages"]
    assert body == {
        "stop": ["x"], "temperature": 0.5, "top_p": 0.9, "top_k": 5, "stream": True, "reasoning_effort": "high",
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
        "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
    }  # fmt: skip
    call = ask(metadata={"user_id": "u7", "tag": "t"})
    assert (call.user, call.end_user, call.tag) == ("u7", "u7", "t")


def test_an_answer_that_has_begun_is_continued():
    begun = {"role": "assistant", "content": "The answer is ("}
    body = sent(messages=[user(text("?")), begun])
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}
    assert "continue_final_message" not in sent(messages=[user(text("?")), called])


def test_an_error_has_that_apis_name_of_the_field():
    assert refusal(tools=[{"name": "f", "input_schema": {"type": "object", "x": [0] * 40_000}}]).param == (
        "tools[0].input_schema"
    )
    long = {"type": "json_schema", "schema": {"enum": [0] * 5000}}
    assert refusal(output_config={"format": long}).param == "output_config.format.schema"


def test_only_fields_that_the_operator_passes_reach_the_engine_unread():
    raw = orjson.dumps(BODY | {"brand_new": 1, "seed": 5, "n": 2, "cache_salt": "x"})
    assert parse(MESSAGES, raw, FieldPolicy()).body == ask().body
    call = parse(MESSAGES, raw, FieldPolicy(passed=frozenset({"brand_new"})))
    assert call.body == ask().body | {"brand_new": 1}


# -- whatever is sent

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from([*fields.BLOCKS, *fields.REFUSED_BLOCKS]) | _VALUES},
    optional={name: _VALUES for table in fields.BLOCKS.values() for name in table}
    | {"source": st.fixed_dictionaries({}, optional=dict.fromkeys(fields.SOURCE, _VALUES))},
)
_MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]) | _VALUES,
        "content": st.lists(_BLOCK, max_size=3) | _VALUES,
    }
)


@examples(60)
@given(
    st.dictionaries(st.sampled_from(sorted(fields.MESSAGES)) | st.text(), _VALUES, max_size=3),
    st.lists(_MESSAGE, min_size=1, max_size=3),
)
def test_anything_is_a_chat_or_a_refusal(given_fields: dict[str, Any], messages: list[Any]):
    try:
        call = ask(**{"messages": messages} | given_fields)
    except FlorinError as error:
        assert error.status == 400  # noqa: PT017
        return
    for name in call.body:
        assert MESSAGES.fields[name].action in (FieldAction.PASS, FieldAction.BOUND)
    call.payload("fl-1", "salt")
