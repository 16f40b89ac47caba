"""Answers of a chat as that API's: whole, and as streams however they arrive."""

from __future__ import annotations

import functools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.dataplane.reply import ReplyUsage
from gateway.dialects.messages.answer import INVALID_INPUT
from gateway.dialects.messages.stream import MessagesReply
from gateway.errors import FlorinError
from gateway.routing.sse import StreamError, Usage
from gateway.routing.translation import TranslatingRewriter, translated
from tests.support.lazily import ImportedWhenUsed

anthropic = ImportedWhenUsed("anthropic")
USAGE = ReplyUsage(prompt=12, completion=5, cached=8, reasoning=0)


@functools.cache
def event_type() -> TypeAdapter[Any]:
    return TypeAdapter(anthropic.types.RawMessageStreamEvent)


def chunk(delta: dict[str, Any], completion: int, reason: str | None = None, **choice: Any) -> bytes:
    """An event as vLLM sends it."""
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "fl-1",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, **choice}],
        "usage": {"prompt_tokens": 12, "total_tokens": 12 + completion, "completion_tokens": completion},
    }
    return b"data: " + orjson.dumps(body) + b"\n\n"


def last(completion: int) -> bytes:
    usage = {
        "prompt_tokens": 12,
        "total_tokens": 12 + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    return b"data: " + orjson.dumps({"id": "c", "choices": [], "usage": usage}) + b"\n\ndata: [DONE]\n\n"


ROLE = chunk({"role": "assistant", "content": ""}, 0)


def said(*words: str) -> bytes:
    return b"".join(chunk({"content": word}, number) for number, word in enumerate(words, 1))


def call(number: int, arguments: str, *, name: str = "", **first: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return {"tool_calls": [{"index": number, **first, "function": function}]}


def stream(data: bytes, step: int = 0, reply: MessagesReply | None = None) -> list[dict[str, Any]]:
    """The events that a client gets, but without those for pings."""
    rewriter = TranslatingRewriter(reply or MessagesReply("support"), answer=None, so_far=None)
    step = step or len(data)
    out = b"".join(rewriter.feed(data[at : at + step]) for at in range(0, len(data), step))
    assert rewriter.done
    return read(out)


def read(out: bytes) -> list[dict[str, Any]]:
    events = []
    for event in out.split(b"\n\n")[:-1]:
        name, _, payload = event.partition(b"\n")
        body = orjson.loads(payload.removeprefix(b"data: "))
        assert name == b"event: " + body["type"].encode()
        if body["type"] not in ("ping", "error"):
            event_type().validate_python(body)
        if body["type"] != "ping":
            events.append(body)
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


ENDED = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}}


def test_a_stream_of_text():
    start, *events = stream(ROLE + said("One", ' "two"', "\n") + chunk({"content": ""}, 4, "stop") + last(4))
    message = start["message"]
    assert start["type"] == "message_start"
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message", "role": "assistant", "model": "support", "content": [],
        "stop_reason": None, "stop_sequence": None,
        "usage": {
            "input_tokens": 12, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0,
        },
    }  # fmt: skip
    text = {"type": "content_block_delta", "index": 0}
    counts = {
        "input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 8, "output_tokens": 4,
    }  # fmt: skip
    assert events == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({**text, "delta": {"type": "text_delta", "text": word}} for word in ("One", ' "two"', "\n")),
        {"type": "content_block_stop", "index": 0},
        {**ENDED, "usage": counts},
        {"type": "message_stop"},
    ]


def test_thoughts_words_and_calls_are_blocks_of_their_own():
    data = b"".join([
        ROLE, chunk({"reasoning": "hm"}, 1), chunk({"reasoning_content": "m"}, 2), chunk({"content": "Let"}, 3),
        chunk(call(0, "", id="chatcmpl-tool-1", type="function", name="f"), 4),
        chunk(call(0, '{"a":'), 5), chunk(call(0, "1}"), 6),
        chunk(call(1, "{}", id="no id: \n", type="function", name="g"), 7),
        chunk({}, 8, "tool_calls"), last(8),
    ])  # fmt: skip
    events = stream(data)
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert starts[:3] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "chatcmpl-tool-1", "name": "f", "input": {}},
    ]
    assert starts[3]["id"].startswith("toolu_")
    deltas = [(event["index"], event["delta"]) for event in events if event["type"] == "content_block_delta"]
    assert deltas == [
        (0, {"type": "thinking_delta", "thinking": "hm"}),
        (0, {"type": "thinking_delta", "thinking": "m"}),
        (1, {"type": "text_delta", "text": "Let"}),
        (2, {"type": "input_json_delta", "partial_json": '{"a":'}),
        (2, {"type": "input_json_delta", "partial_json": "1}"}),
        (3, {"type": "input_json_delta", "partial_json": "{}"}),
    ]
    open_blocks: list[int] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert not open_blocks
            open_blocks.append(event["index"])
        elif event["type"] == "content_block_stop":
            assert open_blocks.pop() == event["index"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("reason", "matched", "wanted", "sequence"),
    [
        ("stop", None, "end_turn", None),
        ("stop", 128009, "end_turn", None),
        ("stop", "END", "stop_sequence", "END"),
        ("length", None, "max_tokens", None),
        ("tool_calls", None, "tool_use", None),
        ("content_filter", None, "refusal", None),
        ("brand_new", None, "end_turn", None),
    ],
)
def test_why_an_answer_ended(reason: str, matched: Any, wanted: str, sequence: str | None):
    data = ROLE + said("x") + chunk({}, 2, reason, stop_reason=matched) + last(2)
    assert stream(data)[-2]["delta"] == {"stop_reason": wanted, "stop_sequence": sequence}
    choice = {"message": {"content": "x"}, "finish_reason": reason, "stop_reason": matched}
    whole = orjson.loads(MessagesReply("support").whole({"choices": [choice]}, USAGE))
    assert (whole["stop_reason"], whole["stop_sequence"]) == (wanted, sequence)


def test_a_forced_call_ends_for_a_tool_although_vllm_says_stop():
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]
    data = ROLE + chunk(call(0, "{}", id="a", name="f"), 1) + chunk({}, 2, "stop") + last(2)
    assert stream(data)[-2]["delta"]["stop_reason"] == "tool_use"
    answer = {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "stop"}]}
    assert orjson.loads(MessagesReply("support").whole(answer, USAGE))["stop_reason"] == "tool_use"


def test_a_whole_answer():
    message = {
        "role": "assistant", "content": "Let me see.", "reasoning": "hm",
        "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }  # fmt: skip
    answer = {
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls", "stop_reason": None}]
    }
    usage = ReplyUsage(prompt=12, completion=5, cached=8, reasoning=2)
    body = orjson.loads(MessagesReply("support").whole(answer, usage))
    anthropic.types.Message.model_validate(body)
    assert body.pop("id").startswith("msg_")
    assert body == {
        "type": "message", "role": "assistant", "model": "support",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use", "stop_sequence": None,
        "usage": {
            "input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 8, "output_tokens": 5,
            "output_tokens_details": {"thinking_tokens": 2},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [("", {}), (None, {}), ('{"a', {INVALID_INPUT: '{"a'}), ("[1]", {INVALID_INPUT: "[1]"})],
)
def test_arguments_that_are_no_object_are_shown_as_written(arguments: str | None, wanted: dict[str, Any]):
    message = {
        "content": None,
        "tool_calls": [{"id": "t", "function": {"name": "f", "arguments": arguments}}],
    }
    answer = {"choices": [{"message": message, "finish_reason": "length"}]}
    (block,) = orjson.loads(MessagesReply("support").whole(answer, USAGE))["content"]
    assert block["input"] == wanted


def test_an_answer_without_words_has_no_blocks():
    data = ROLE + chunk({}, 1, "stop") + last(1)
    assert kinds(stream(data)) == ["message_start", "message_delta", "message_stop"]
    answer = {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}
    assert orjson.loads(MessagesReply("support").whole(answer, USAGE))["content"] == []


@pytest.mark.parametrize(
    "delta",
    [
        {"content": ["x"]}, {"content": {"a": 1}}, {"reasoning": 5}, {"tool_calls": 5}, {"tool_calls": [5]},
        {"tool_calls": [{}]}, {"tool_calls": [{"index": 0}]}, {"tool_calls": [{"index": "a", "function": {"name": "f"}}]},
        {"tool_calls": [{"index": 0, "function": {"name": 5}}]}, {"tool_calls": [{"index": 0, "function": 5}]},
        call(0, ["x"], name="f"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_malformed(delta: dict[str, Any]):
    with pytest.raises(StreamError) as caught:
        stream(ROLE + chunk(delta, 1) + chunk({}, 2, "stop") + last(2))
    assert caught.value.malformed


def test_calls_out_of_order_are_malformed():
    first, second = chunk(call(0, "", name="f"), 1), chunk(call(1, "", name="f"), 2)
    with pytest.raises(StreamError):
        stream(ROLE + first + second + chunk(call(0, "{"), 3))
    with pytest.raises(StreamError):
        stream(ROLE + first + said("x") + chunk(call(0, "{"), 3))


def test_a_failure_is_an_event():
    (event,) = read(MessagesReply("support").fail(FlorinError("stream_interrupted", "The engine failed.")))
    assert event["error"]["type"] == "api_error"
    assert event["error"]["message"] == "The engine failed."


def test_a_new_attempt_starts_over():
    reply = MessagesReply("support")
    TranslatingRewriter(reply, answer=None, so_far=None).feed(ROLE + said("lost"))
    data = ROLE + said("x") + chunk({}, 2, "stop") + last(2)
    assert kinds(stream(data, reply=reply))[:2] == ["message_start", "content_block_start"]


def test_the_end_that_an_engine_owes():
    rewriter = TranslatingRewriter(MessagesReply("support"), answer=None, so_far=None)
    before = read(rewriter.feed(ROLE + said("x") + chunk({}, 2, "length")))
    assert kinds(before)[1:] == [
        "content_block_start",
        "content_block_delta",
    ]  # nothing that looks like the end
    assert kinds(read(rewriter.ending())) == ["content_block_stop", "message_delta", "message_stop"]
    usage = Usage()
    usage.prompt = usage.completion = 1
    assert translated(MessagesReply("m"), {"choices": [{"message": {}, "finish_reason": "stop"}]}, usage)


DELTAS = st.one_of(
    st.text(max_size=6).map(lambda text: {"content": text}),
    st.text(min_size=1, max_size=6).map(lambda text: {"reasoning": text}),
    st.text(max_size=6).map(lambda text: call(0, text)),
)


@given(st.lists(DELTAS, max_size=12), st.integers(1, 200), st.integers(0, 3))
def test_a_stream_is_the_same_however_it_is_split(deltas: list[dict[str, Any]], step: int, calls: int):
    """And whether an event is recognized by its bytes or parsed."""
    words = [delta for delta in deltas if "tool_calls" not in delta]
    pieces = [delta for delta in deltas if "tool_calls" in delta]
    events = [ROLE, *(chunk(delta, n) for n, delta in enumerate(words, 1))]
    at = len(words)
    for number in range(calls):
        events.append(chunk(call(number, "", id=f"t{number}", name="f"), at := at + 1))
        for piece in pieces:
            arguments = piece["tool_calls"][0]["function"]["arguments"]
            events.append(chunk(call(number, arguments), at := at + 1))
    data = b"".join([*events, chunk({}, at + 1, "stop"), last(at + 1)])
    one_by_one, whole = stream(data, step), stream(data)
    for events_of in (one_by_one, whole):
        events_of[0]["message"]["id"] = ""
    assert one_by_one == whole
    text = "".join(e["delta"].get("text", "") for e in whole if e["type"] == "content_block_delta")
    assert text == "".join(delta.get("content", "") for delta in words)


@given(st.lists(st.text(max_size=8), min_size=1, max_size=6))
def test_the_fast_path_says_the_same(words: list[str]):
    fast, slow = MessagesReply("support"), MessagesReply("support")
    usage = ReplyUsage(1, 1, None, 0)
    first = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    for reply in (fast, slow):
        reply.event(first, usage)
    for word in words:
        event = {"choices": [{"delta": {"content": word}}]}
        assert fast.text(orjson.dumps(word)[1:-1]) == slow.event(event, usage)
