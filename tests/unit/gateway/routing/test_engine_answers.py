"""What no engine may answer: each is malformed, never a crash, and costs no memory."""

from __future__ import annotations

import orjson
import pytest

from gateway.metering.token_counts import MAX_TOKENS_PER_CHOICE
from gateway.routing.engine_answers import (
    MalformedError,
    read_answer,
    read_error,
    render,
)
from gateway.routing.sse import StreamError, StreamRewriter
from tests.unit.gateway.routing.test_sse import FINAL, ended, event, rewriter, token

CHOICE = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
DEEP = b"[" * 300 + b"]" * 300

CHOICES = {
    "null": None,
    "an object": {},
    "a text": "x",
    "a number": 1,
    "none": [],
    "a null choice": [None],
    "a list as choice": [[1]],
    "a text as choice": ["x"],
    "no index": [{"delta": {}, "message": {}, "finish_reason": "stop"}],
    "an index that is a text": [CHOICE | {"index": "0"}],
    "an index that is a bool": [CHOICE | {"index": False}],
    "an index that is a float": [CHOICE | {"index": 0.0}],
    "a negative index": [CHOICE | {"index": -1}],
    "an index out of range": [CHOICE | {"index": 1}],
    "an absurd index": [CHOICE | {"index": 2**63}],
    "a finish reason that is a number": [CHOICE | {"finish_reason": 1}],
    "a finish reason that is a list": [CHOICE | {"finish_reason": ["stop"]}],
    "too many": [CHOICE | {"index": i} for i in range(1000)],
    "has no content": [{"index": 0, "finish_reason": None}],
    "says null": [{"index": 0, "delta": None, "message": None, "text": None}],
    "text that is a number": [{"index": 0, "text": 7}],
    "delta that is a list": [{"index": 0, "delta": [1], "message": [1]}],
}


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_choices_that_cannot_be(choices):
    with pytest.raises(MalformedError):
        read_answer(orjson.dumps({"choices": choices}), choices=1)
    if choices == []:
        return  # in a stream, these are the closing counts
    first, later = rewriter(), rewriter()
    later.feed(token("a", 1))
    for r in (first, later):
        with pytest.raises(StreamError) as caught:
            r.feed(event(choices=choices))
        assert caught.value.malformed


BODIES = [
    b"",
    b"nonsense",
    b"[]",
    b"null",
    b'"x"',
    b"1",
    b"{}",
    b"\xff\xfe",
    b'{"choices": "\xff"}',
    b'{"choices":[' * 10_000,
    DEEP,
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_bodies_that_are_no_answers(body):
    with pytest.raises(MalformedError):
        read_answer(body, choices=1)
    with pytest.raises(StreamError) as caught:
        rewriter().feed(b"data: " + body.replace(b"\n\n", b"") + b"\n\n")
    assert caught.value.malformed


def test_what_can_be_read_but_not_written():
    body = orjson.dumps({"choices": [CHOICE]})[:-1] + b',"x":' + DEEP + b"}"
    with pytest.raises(MalformedError):
        render(read_answer(body, choices=1))
    with pytest.raises(StreamError) as caught:
        rewriter().feed(token("a", 1)[:-3] + b',"x":' + DEEP + b"}\n\n")
    assert caught.value.malformed


def test_each_index_comes_once_in_a_whole_answer():
    twice = {"choices": [CHOICE, CHOICE]}
    with pytest.raises(MalformedError, match="same index"):
        read_answer(orjson.dumps(twice), choices=2)
    good = {"choices": [CHOICE, CHOICE | {"index": 1}]}
    assert len(read_answer(orjson.dumps(good), choices=2)["choices"]) == 2


def test_several_choices_in_one_event_are_all_looked_at():
    r = StreamRewriter("m", include_usage=False, continuous_usage=False, choices=2, n=2)
    two = [{"index": i, "delta": {"content": "x"}, "finish_reason": "stop"} for i in range(2)]
    r.feed(event(choices=two))
    assert r.closing
    with pytest.raises(StreamError):
        r.feed(event(choices=[two[0], None]))


def test_a_choice_that_ends_twice_does_not_end_the_other():
    r = rewriter(choices=2)
    r.feed(token("a", 1, 0) + ended(0) + ended(0))
    assert not r.closing


RUNNING = [
    [1, 2], "7", 7, True, {}, {"prompt_tokens": 5}, {"completion_tokens": 5},
    {"prompt_tokens": "7", "completion_tokens": 2}, {"prompt_tokens": None, "completion_tokens": 2},
    {"prompt_tokens": True, "completion_tokens": 2}, {"prompt_tokens": 5.0, "completion_tokens": 2},
    {"prompt_tokens": -5, "completion_tokens": 2}, {"prompt_tokens": 0, "completion_tokens": 2},
    {"prompt_tokens": 5, "completion_tokens": -1}, {"prompt_tokens": 5, "completion_tokens": 0},
    {"prompt_tokens": MAX_TOKENS_PER_CHOICE + 1, "completion_tokens": 2},
    {"prompt_tokens": 5, "completion_tokens": MAX_TOKENS_PER_CHOICE + 1},
    {"prompt_tokens": 5, "completion_tokens": 9 * 10**18},
]  # fmt: skip


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("usage", RUNNING, ids=str)
def test_running_counts_that_cannot_be_are_passed_over_and_the_answer_is_not(usage, choices):
    r = rewriter(choices=choices)
    r.feed(token("a", 1))
    out = r.feed(event(choices=[{"index": 0, "delta": {"content": "b"}, "finish_reason": None}], usage=usage))
    assert b'"content":"b"' in out
    assert b"usage" not in out
    assert (r.usage.prompt, r.usage.completion, r.usage.unsound) == (5, 1, True)
    r.feed(token("c", 3))
    assert (r.usage.prompt, r.usage.completion) == (5, 3)


CLOSING = [
    [1, 2], "7", 7, {}, {"completion_tokens": 3}, {"prompt_tokens": "7", "completion_tokens": 3},
    {"prompt_tokens": 5, "completion_tokens": 1}, {"prompt_tokens": 5, "completion_tokens": 9 * 10**18},
    {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 6}},
    {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": [1]},
    {"prompt_tokens": 5, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 4}},
]  # fmt: skip


@pytest.mark.parametrize("usage", CLOSING, ids=str)
def test_closing_counts_that_cannot_be_leave_those_before_them(usage):
    r = rewriter()
    r.feed(token("a", 2) + event(choices=[], usage=usage) + b"data: [DONE]\n\n")
    assert r.done
    assert (r.usage.prompt, r.usage.completion, r.usage.exact, r.usage.unsound) == (5, 2, False, True)


def test_sound_closing_counts_make_up_for_unsound_running_ones():
    r = rewriter()
    r.feed(token("a", 2) + token("b", 1) + FINAL)
    assert (r.usage.completion, r.usage.exact, r.usage.unsound) == (3, True, True)


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[1]", b"null", b'"x"', b'{"error": [1]}', b'{"error": null}']
)
def test_refusals_without_an_error_object(body):
    assert read_error(body) == {}


@pytest.mark.parametrize("code", [True, "400", 4.0, None, [400]])
def test_a_code_that_is_no_number_is_a_failure(code):
    with pytest.raises(StreamError) as caught:
        rewriter().feed(event(error={"message": "x", "code": code}))
    assert caught.value.status == 500
