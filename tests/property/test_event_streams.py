"""However an engine writes its events, and wherever they are cut, clients get the same text, usage and end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.messages.stream import MessagesReply
from gateway.routing.final_counts import FinalCounts
from gateway.routing.resume import ResumableStream, ResumeBuffer
from gateway.routing.sse import ContinuedRewriter, StreamError, StreamRewriter
from gateway.routing.translation import TranslatingRewriter
from tests.property.test_event_bytes import cut, recorded, sizes
from tests.support.search import examples

ENDS = [b"\n", b"\r\n", b"\r"]
OTHERS = [
    b": keep-alive",
    b":",
    b"event: message",
    b"event:error",
    b"id: 7",
    b"id",
    b"retry: 3",
    b"x-more: data: {",
]
"""Lines without data."""
MARK = b"\xef\xbb\xbf"


def lines_of(payload: bytes, style: int) -> list[bytes]:
    """The fields with an event's data."""
    if style == 0:
        return [b"data: " + payload]
    if style == 1 or payload == b"[DONE]":
        return [b"data:" + payload]
    indented = orjson.dumps(orjson.loads(payload), option=orjson.OPT_INDENT_2)
    return [b"data: " + line for line in indented.split(b"\n")]


@st.composite
def serializations(draw: st.DrawFn, payloads: list[bytes]) -> bytes:
    """A valid event stream with these events, the last of which may lack its blank line."""
    mixed = draw(st.booleans())
    end = draw(st.sampled_from(ENDS))
    style = draw(st.integers(0, 2))
    lines: list[bytes] = []
    for payload in payloads:
        if draw(st.integers(0, 3)) == 0:
            lines += [draw(st.sampled_from(OTHERS)), *draw(st.sampled_from([[], [b""], [b"", b""]]))]
        fields = lines_of(payload, draw(st.integers(0, 2)) if mixed else style)
        for field in fields:
            lines += [draw(st.sampled_from(OTHERS)), field] if draw(st.integers(0, 9)) == 0 else [field]
        lines.append(b"")
    if draw(st.booleans()):
        lines.pop()
    stream = draw(st.sampled_from([b"", MARK]))
    for line in lines:
        stream += line
        after = draw(st.sampled_from(ENDS)) if mixed else end
        stream += b"\r" if after == b"\n" and stream.endswith(b"\r") else after
    return stream.rstrip(b"\r\n") if draw(st.integers(0, 4)) == 0 else stream


def payloads_of(stream: bytes) -> list[bytes]:
    return [event[6:] for event in stream.split(b"\n\n")[:-1]]


def rewriter(kind: str) -> StreamRewriter:
    options: dict[str, Any] = {"include_usage": True, "continuous_usage": False}
    if kind == "messages":
        reply = MessagesReply("support")
        reply._id = "msg_1"
        return TranslatingRewriter(reply, answer=None, so_far=None)
    if kind == "resumed":
        answer = ResumableStream(ResumeBuffer(), "", chat=True, opens=True)
        answer.start(b'{"messages": []}')
        answer.begin()
        answer.add({"id": "first", "choices": [{"delta": {"content": "He"}}]}, 1)
        assert answer.keep(5) == ""
        answer.begin()
        return ContinuedRewriter("support", answer, **options)
    return StreamRewriter("support", **options)


def played(pieces: list[bytes], kind: str) -> tuple[bytes, Any]:
    """What the client gets, and what is counted."""
    reader = rewriter(kind)
    counts: Callable[[bytes], bytes] = (
        FinalCounts(prompt=9, prompts=1, n=1).feed if kind == "final" else bytes
    )
    reader.estimated = kind == "final"
    out = b"".join(reader.feed(counts(piece)) for piece in [*pieces, b"\n\n"])
    usage = reader.usage
    return out, (reader.done, usage.prompt, usage.completion, usage.cached, usage.exact, usage.unsound)


CHAT = payloads_of(recorded(chat=True, continuous=True))
KINDS = ["vllm", "messages", "resumed", "final"]


@examples(200)
@given(
    stream=serializations(CHAT),
    sizes=sizes | st.lists(st.integers(0, 3), max_size=300),
    kind=st.sampled_from(KINDS),
)
def test_any_serialization_cut_anywhere(stream: bytes, sizes: list[int], kind: str):
    plain = b"".join(b"data: %b\n\n" % payload for payload in CHAT)
    expected, counts = played([plain], kind)
    assert counts[0]
    assert played(list(cut(stream, sizes)), kind) == (expected, counts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS)
def test_usage_in_the_last_event_with_choices(kind: str, end: bytes):
    """Engines need not send it in an event of its own, nor before."""
    *deltas, last, final, done = [
        orjson.loads(payload) if payload[:1] == b"{" else payload for payload in CHAT
    ]
    for chunk in deltas:
        del chunk["usage"]
    last["usage"] = final["usage"]
    events = [*map(orjson.dumps, [*deltas, last]), done]
    stream = b"".join(b"data:%b%b%b" % (event, end, end) for event in events)
    out, counts = played([stream], kind)
    assert counts == played([b"".join(b"data: %b\n\n" % payload for payload in CHAT)], kind)[1]
    assert counts[3:] == (4, True, False)
    if kind != "messages":
        chunk = orjson.loads(out.split(b"\n\n")[-3].removeprefix(b"data: "))
        assert (chunk["choices"], chunk["usage"]["completion_tokens"] > 0) == ([], True)


@pytest.mark.parametrize(
    "line",
    [
        b'{"error": {"message": "no such thing"}}',
        b"Data: {}",
        b"<html>",
        b"\xff\xfe",
        b" data: {}",
        b"HTTP/1.1 500",
    ],
)
@pytest.mark.parametrize("kind", ["vllm", "final"])
def test_what_is_no_field_is_malformed(line: bytes, kind: str):
    start = b"data: %b\n\n" % CHAT[0]
    for end in ENDS:
        with pytest.raises(StreamError) as caught:
            played([start + line + end], kind)
        assert caught.value.malformed


@pytest.mark.parametrize("kind", ["vllm", "final"])
def test_an_event_that_never_ends_is_malformed(kind: str):
    piece = b"x" * (1 << 20)
    with pytest.raises(StreamError, match="too long"):
        played([b"data: " + piece, *[piece] * 16], kind)


@pytest.mark.parametrize("kind", ["vllm", "final"])
@pytest.mark.parametrize(
    "piece", [b"x" * 512, b": keep-alive\r\n\r\n" * 32, b"data: x\n" * 64, b"\r" * 512, b"data: \n" * 64]
)
def test_a_stream_costs_time_in_proportion_to_its_length(piece: bytes, kind: str):
    def seconds(pieces: int) -> float:
        counts = FinalCounts(prompt=9, prompts=1, n=1).feed if kind == "final" else bytes
        reader = rewriter("vllm")
        started = time.process_time()
        reader.feed(counts(b": "))
        for _ in range(pieces):
            reader.feed(counts(piece))
        return time.process_time() - started

    few = min(seconds(1000) for _ in range(3))
    many = min(seconds(4000) for _ in range(3))
    assert many < 8 * few + 0.03
