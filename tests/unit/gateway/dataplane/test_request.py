from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dataplane.request import CHAT, COMPLETIONS, parse
from gateway.errors import FlorinError
from gateway.fields.rule import FieldPolicy
from tests.support.search import examples

CHAT_BODY = {"model": "support", "messages": [{"role": "user", "content": "Hi"}]}
TEXT_BODY = {"model": "support", "prompt": "Hi"}


def parsed(endpoint, body):
    return parse(endpoint, body if isinstance(body, bytes) else orjson.dumps(body), FieldPolicy())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", None), ("messages", None), ("messages", ["Hi"]), ("n", 17), ("max_tokens", 0), ("stream", "yes"),
        ("temperature", -0.1), ("stop", [1]), ("response_format", "json"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(field, value):
    with pytest.raises(FlorinError) as caught:
        parsed(CHAT, CHAT_BODY | {field: value})
    assert caught.value.param == field
    assert caught.value.code == "invalid_value"
    assert caught.value.status == 400
    assert f"`{field}` must " in caught.value.message


@pytest.mark.parametrize(
    ("endpoint", "asked", "scored"),
    [
        (CHAT, {"prompt_logprobs": 0}, "prompt_logprobs"),  # which counts
        (COMPLETIONS, {"prompt_logprobs": 5}, "prompt_logprobs"),
        (CHAT, {"echo": True}, "echo"),  # `top_logprobs` is 0 there, which counts
        (COMPLETIONS, {"echo": True, "logprobs": 0}, "echo"),
        (COMPLETIONS, {"echo": True}, ""),
        (COMPLETIONS, {"logprobs": 5}, ""),
        (CHAT, {"logprobs": True, "top_logprobs": 2}, ""),
    ],
)
def test_the_field_that_has_the_prompt_scored(endpoint, asked, scored):
    call = parsed(endpoint, (CHAT_BODY if endpoint is CHAT else TEXT_BODY) | asked)
    assert call.scored == scored
    assert asked.items() <= call.body.items()


def test_many_prompts_times_many_answers_are_refused():
    body = TEXT_BODY | {"prompt": ["a"] * 100}
    assert parsed(COMPLETIONS, body | {"n": 10}).n == 10
    with pytest.raises(FlorinError, match="at most 1024"):
        parsed(COMPLETIONS, body | {"n": 11})


@pytest.mark.parametrize(
    ("prompt", "count"), [("Hi", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2)]
)
def test_valid_prompts(prompt, count):
    assert parsed(COMPLETIONS, TEXT_BODY | {"prompt": prompt}).prompts == count


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b"5", b'"x"', b"\xff\xfe{\x00}\x00", b'{"model": "\xff"}', b'{"a": NaN}'],
    ids=lambda raw: repr(raw[:12]),
)  # fmt: skip
def test_what_is_not_a_json_object_in_utf8(raw):
    with pytest.raises(FlorinError) as caught:
        parsed(CHAT, raw)
    assert caught.value.code == "invalid_json"


def test_nesting_that_can_not_be_read():
    with pytest.raises(FlorinError) as caught:
        parsed(CHAT, b"[" * 100_000)
    assert caught.value.code == "body_too_complex"


def test_nesting_that_can_be_read_but_not_written():
    deep = b'{"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"x": %s}]}]}'
    deep %= b"[" * 500 + b"]" * 500
    with pytest.raises(FlorinError) as caught:
        parsed(CHAT, deep).payload("fl-1", "salt")
    assert caught.value.code == "body_too_complex"


def test_what_was_read_is_what_is_sent():
    """A duplicate key, however spelled, has one meaning: the one that was authorized."""
    raw = b'{"model": "bolt", "messages": [{"role": "user"}], "m\\u006fdel": "acme", "cache_salt": "x"}'
    call = parsed(CHAT, raw)
    assert call.model == "acme"
    assert orjson.loads(call.payload("fl-acme", "salt")) == {
        "model": "fl-acme",
        "messages": [{"role": "user"}],
        "cache_salt": "salt",
    }


def test_the_prompt_comes_first_in_its_own_order():
    """So that bodies of prompts that begin alike begin alike."""
    tools = [{"type": "function", "function": {"name": "find", "parameters": {"enum": ["a"]}}}]
    call = parsed(CHAT, {"temperature": 0, **CHAT_BODY, "tools": tools})
    sent = call.payload("fl-1", "salt")
    assert list(orjson.loads(sent))[:2] == ["tools", "messages"]
    assert call.tools_size == sent.index(b',"messages"') - 1


def test_the_engine_is_always_asked_for_counts():
    call = parsed(CHAT, CHAT_BODY | {"stream": True, "stream_options": {"include_usage": False, "x": 1}})
    assert (call.include_usage, call.continuous_usage) == (False, False)
    sent = orjson.loads(call.payload("fl-1", "salt"))
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert call.unknown_names == ("x",)


@examples(40)
@given(
    st.dictionaries(
        st.text().filter(lambda k: k not in CHAT.fields),
        st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), st.lists, max_leaves=5),
    )
)  # fmt: skip
def test_unknown_fields_are_dropped_and_counted(extra):
    call = parsed(CHAT, CHAT_BODY | extra)
    assert orjson.loads(call.payload("fl-1", "salt")).keys() == {"model", "messages", "cache_salt"}
    assert call.unknown == len(extra)
    assert len(call.unknown_names) == min(len(extra), 8)
    assert all(len(name) <= 64 for name in call.unknown_names)


def test_allowed_unknown_fields_are_passed_on():
    policy = FieldPolicy(passed=frozenset({"new_field"}))
    call = parse(CHAT, orjson.dumps(CHAT_BODY | {"new_field": {"a": [1]}, "other": 1}), policy)
    assert call.body["new_field"] == {"a": [1]}
    assert call.unknown_names == ("other",)


def test_an_end_user_is_known_to_florin_alone():
    call = parsed(CHAT, CHAT_BODY | {"user": "u1", "safety_identifier": "s1"})
    assert call.user == "u1"
    assert parsed(CHAT, CHAT_BODY | {"safety_identifier": "s1"}).user == "s1"
    assert call.body.keys() == {"messages"}


def test_fewest_tokens_are_not_more_than_most():
    for most in ("max_tokens", "max_completion_tokens"):
        assert parsed(CHAT, CHAT_BODY | {most: 5, "min_tokens": 5}).body["min_tokens"] == 5
        with pytest.raises(FlorinError) as caught:
            parsed(CHAT, CHAT_BODY | {most: 5, "min_tokens": 6})
        assert caught.value.param == "min_tokens"


@pytest.mark.parametrize("included", [True, False])
def test_a_streams_reasoning_is_asked_for_even_if_it_is_hidden(included):
    """It shows how many tokens there are so far."""
    for stream in (False, True):
        call = parsed(CHAT, CHAT_BODY | {"include_reasoning": included, "stream": stream})
        sent = orjson.loads(call.payload("fl-1", "salt"))
        assert sent.get("include_reasoning", True) is (included or stream)
        assert call.hides_reasoning is (stream and not included)
