"""Events that are recognized by their bytes have exactly the effect that parsing them has."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.routing.resume import ResumableStream, ResumeBuffer
from gateway.routing.sse import ContinuedRewriter, StreamError, StreamRewriter
from loadtests.mock_engine import answers
from loadtests.mock_engine.request import GenerationRequest
from tests.support.search import examples

MODEL = "fl-0123"
DONE = b"data: [DONE]\n\n"


class ParsingRewriter(StreamRewriter):
    def _learn(self, event: bytes, chunk: dict[str, Any]) -> None:
        """Nothing, so that every event is parsed."""


class ParsingContinuedRewriter(ContinuedRewriter):
    _learn = ParsingRewriter._learn


class Followed:
    """One rewriter and what can be seen of it."""

    def __init__(self, kind: type[StreamRewriter], answer: ResumableStream | None, **options: Any) -> None:
        self.answer = answer
        if issubclass(kind, ContinuedRewriter):
            self.rewriter: StreamRewriter = kind("support", answer, **options)
        else:
            self.rewriter = kind("support", answer=answer, **options)

    def feed(self, piece: bytes) -> tuple[Any, ...]:
        try:
            out: Any = self.rewriter.feed(piece)
        except StreamError as error:
            out = (str(error), error.error, error.malformed, self.rewriter.unsent)
        r, a = self.rewriter, self.answer
        counts = [getattr(r.usage, name) for name in r.usage.__slots__]
        state = (r.done, r.closing, r.aborted, r.has_content, r._last, r._events.rest, counts)
        return out, state, a and (a.head, a.text, a.tokens, a.spoilt, a.obstacle, repr(a.buffer))


def same(pieces: list[bytes], *, resumable: bool, continued: bool = False, **options: Any) -> bytes:
    """Feed both, compare them after each piece, and return the output."""

    def answer() -> ResumableStream | None:
        if not resumable:
            return None
        made = ResumableStream(ResumeBuffer(40_000), "", chat=True, opens=True)
        made.start(b'{"messages": []}')
        made.begin()
        if continued:
            first = {"id": "first", "object": "chat.completion.chunk", "created": 7}
            made.add(first | {"choices": [{"delta": {"content": "He"}}]}, 1)
            assert made.keep(5) == ""
            made.begin()
        return made

    kinds = (ContinuedRewriter, ParsingContinuedRewriter) if continued else (StreamRewriter, ParsingRewriter)
    quick, parsing = (Followed(kind, answer(), **options) for kind in kinds)
    out = b""
    for piece in pieces:
        seen = quick.feed(piece)
        assert seen == parsing.feed(piece)
        if type(seen[0]) is tuple:
            break
        out += seen[0]
    return out


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    for size in sizes:
        yield data[:size]
        data = data[size:]
    yield data


LOOKS_LIKE_JSON = [
    '"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{"prompt_tokens":9',
    f'","model":"{MODEL}"', '\\"', "\\", "\\\\n", '"', "data: [DONE]\n\n", "\n\ndata: {", "\r\n\r\n", "null}",
]  # fmt: skip
ODD = ["é", "€", "𝄞", "\x00", "\x08", "\x1f", "\x7f", "\u2028", "\ufffd", "\t", "/", "</s>", " "]
texts = st.lists(st.text(max_size=4) | st.sampled_from(LOOKS_LIKE_JSON + ODD), max_size=4).map("".join)
MODES = [(False, False), (True, False), (True, True)]
"""Whether usage is included, and at every event."""
modes = st.sampled_from(MODES)
sizes = st.lists(st.integers(0, 400), max_size=12)


def dumped(value: Any, style: int) -> bytes:
    """As some serializer would write it."""
    if style == 0:
        return orjson.dumps(value)
    if style == 1:
        return json.dumps(value, separators=(",", ":")).encode()  # escapes what is not ASCII
    if style == 2:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    return json.dumps(value).encode()


def plain_event(number: int, text: str) -> dict[str, Any]:
    """The most frequent event of a chat."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1763800000,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "delta": {"content": text},
                "logprobs": None,
                "finish_reason": None,
                "token_ids": None,
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "total_tokens": 5 + number,
            "completion_tokens": number,
            "completion_tokens_details": None,
        },
    }


def _set(path: str, value: Any) -> Any:
    def change(event: dict[str, Any]) -> None:
        target: Any = event
        *way, last = path.split(".")
        for step in way:
            target = target[int(step)] if step.isdigit() else target[step]
        target[last] = value

    return change


def _drop(*path: str) -> Any:
    def change(event: dict[str, Any]) -> None:
        target: Any = event["choices"][0] if len(path) == 2 else event
        target.pop(path[-1], None)

    return change


def _reverse(event: dict[str, Any]) -> None:
    items = list(event.items())[::-1]
    event.clear()
    event.update(items)


CHANGES = [
    _set("choices.0.delta", {"role": "assistant", "content": ""}),
    _set("choices.0.delta", {"role": "assistant"}),
    _set("choices.0.delta", {"reasoning": "hm"}),
    _set("choices.0.delta", {"reasoning": ""}),
    _set("choices.0.delta", {"content": "x", "reasoning": None}),
    _set("choices.0.delta", {"content": None}),
    _set("choices.0.delta", {"content": 5}),
    _set("choices.0.delta", {"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]}),
    _set("choices.0.delta", {}),
    _set("choices.0.delta", None),
    _set("choices.0.text", "words"),
    _set("choices.0.logprobs", {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": []}]}),
    _set("choices.0.token_ids", [4, 5]),
    _set("choices.0.finish_reason", "stop"),
    _set("choices.0.finish_reason", "abort"),
    _set("choices.0.finish_reason", ""),
    _set("choices.0.finish_reason", 1),
    _set("choices.0.index", 1),
    _set("choices.0.index", True),
    _set("choices", []),
    _set("choices", None),
    _set("choices", [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}] * 2),
    _set("id", "chatcmpl-2"),
    _set("model", 'a"b'),
    _set("model", None),
    _set("error", {"message": "died", "code": 500}),
    _set("system_fingerprint", "vllm"),
    _set("created", 1.5),
    _set("usage", None),
    _set("usage", {"prompt_tokens": 5, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}),
    _set("usage", {"prompt_tokens": "5", "completion_tokens": 9}),
    _set("usage", 5),
    _set("usage.completion_tokens", 0),
    _set("usage.completion_tokens", -1),
    _set("usage.completion_tokens", 1.0),
    _set("usage.completion_tokens", True),
    _set("usage.completion_tokens", 10_000_001),
    _set("usage.completion_tokens", 2**63),
    _set("usage.completion_tokens_details", {"reasoning_tokens": 1, "audio_tokens": 0}),
    _set("usage.completion_tokens_details", {"reasoning_tokens": 1000}),
    _set("usage.completion_tokens_details", {"reasoning_tokens": None}),
    _set("usage.completion_tokens_details", 7),
    _set("usage.prompt_tokens", 6),
    _set("usage.prompt_tokens", 0),
    _set("usage.total_tokens", None),
    _drop("usage"),
    _drop("id"),
    _drop("choices", "finish_reason"),
    _drop("choices", "index"),
    _drop("choices", "delta"),
    _reverse,
    lambda event: _reverse(event["choices"][0]),
]  # fmt: skip


@pytest.mark.parametrize("change", range(len(CHANGES)))
def test_one_odd_event(change):
    """Before plain events, among them, and all of them from there on."""
    for odd in ([0], [2, 4], range(2, 9)):
        events = [plain_event(number, text) for number, text in enumerate(["", "a", *ODD[:7]])]
        for number in odd:
            CHANGES[change](events[number])
        pieces = [b"data: " + orjson.dumps(event) + b"\n\n" for event in events]
        for mode, continued in itertools.product(MODES, (False, True)):
            same(pieces, resumable=True, continued=continued, include_usage=mode[0], continuous_usage=mode[1])


@pytest.mark.parametrize("text", LOOKS_LIKE_JSON + ODD)
def test_one_odd_text(text):
    for style, mode in itertools.product(range(4), MODES):
        events = [plain_event(1, "a"), *(plain_event(2, before + text) for before in ("", "a", "\\", '"'))]
        pieces = [b"data: " + dumped(event, style if n else 0) + b"\n\n" for n, event in enumerate(events)]
        same(pieces, resumable=True, include_usage=mode[0], continuous_usage=mode[1])


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Plain events among others, as engines might send them, or might not."""
    style = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
    out = []
    for number in range(1, draw(st.integers(2, 9))):
        event = plain_event(number, draw(texts))
        if draw(st.integers(0, 3)) == 0:
            draw(st.sampled_from(CHANGES))(event)
        written = b"data: " + dumped(event, style) + b"\n\n"
        other = draw(st.integers(0, 30))
        if other == 0:
            written = b": ping\n\n" + written
        elif other == 1:
            written = written.replace(b"\n\n", b"\r\n\r\n")
        elif other == 2:
            written = written.replace(b"data: ", b"data:")
        elif other == 3:
            written = b"\n" + written
        elif other == 4:
            written = written.replace(b'"created"', b'"model":"twice","created"')
        out.append(written)
    end = draw(st.integers(0, 3))
    if end == 0:
        out.append(b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9}}\n\n' + DONE)
    elif end == 1:
        out.append(DONE)
    return b"".join(out)


@examples(300)
@given(stream=streams(), sizes=sizes, mode=modes, resumable=st.booleans())
def test_plain_events_among_others(stream, sizes, mode, resumable):
    include, continuous = mode
    pieces = list(cut(stream, sizes))
    same(pieces, resumable=resumable, include_usage=include, continuous_usage=continuous)


@examples(300)
@given(stream=streams(), sizes=sizes, mode=modes)
def test_plain_events_of_an_engine_that_resumes(stream, sizes, mode):
    include, continuous = mode
    pieces = list(cut(stream, sizes))
    same(pieces, resumable=True, continued=True, include_usage=include, continuous_usage=continuous)


def recorded(
    *, chat: bool, continuous: bool, tokens: int = 6, choices: int = 1, finish: str = "stop"
) -> bytes:
    """A stream of vLLM's, as the mock engine sends it."""
    request = GenerationRequest(
        chat=chat, model=MODEL, stream=True, choices=choices, tokens=tokens, finish=finish, prompt="Hi",
        prompts=(5,), include_usage=True, continuous_usage=continuous, salt="",
    )  # fmt: skip
    return b"".join(answers.events(request, "chatcmpl-1", 4, details=True))


class Bytes:
    """Changes of single bytes."""

    position = st.integers(0, 100_000)
    flip = st.tuples(st.just("flip"), position, st.integers(1, 255))
    drop = st.tuples(st.just("drop"), position, st.integers(1, 5))
    repeat = st.tuples(st.just("repeat"), position, st.integers(1, 300))
    insert = st.tuples(
        st.just("insert"), position, st.sampled_from([b'"', b"\\", b"\n", b"\xff", b"0", b","])
    )
    changes = st.lists(flip | drop | repeat | insert, min_size=1, max_size=3)

    @staticmethod
    def changed(data: bytes, change: tuple[str, int, Any]) -> bytes:
        how, at, what = change
        at %= max(1, len(data))
        if how == "flip":
            return data[:at] + bytes([data[at] ^ what]) + data[at + 1 :]
        if how == "drop":
            return data[:at] + data[at + what :]
        if how == "repeat":
            return data[:at] + data[at : at + what] + data[at:]
        return data[:at] + what + data[at:]


@examples(300)
@given(
    shape=st.tuples(st.booleans(), st.booleans()),
    choices=st.sampled_from([1, 1, 1, 2]),
    changes=Bytes.changes,
    sizes=sizes,
    mode=modes,
    resumable=st.booleans(),
)
def test_a_recorded_stream_with_damaged_bytes(shape, choices, changes, sizes, mode, resumable):
    chat, counted = shape
    stream = recorded(chat=chat, continuous=counted, choices=choices)
    for change in changes:
        stream = Bytes.changed(stream, change)
    assume(stream)
    include, continuous = mode
    pieces = list(cut(stream, sizes))
    options = {"include_usage": include, "continuous_usage": continuous, "choices": choices, "n": choices}
    same(pieces, resumable=resumable and choices == 1, **options)


def test_reasoning_that_begins_with_no_text():
    """Only reasoning that was delivered rules a resume out."""
    deltas = [{"content": "a"}, *({"reasoning": text} for text in ["", "", "hm", "", "ho"]), {"content": "b"}]
    for count in range(1, len(deltas) + 1):
        events = [plain_event(number, "") for number in range(count)]
        for event, delta in zip(events, deltas, strict=False):
            event["choices"][0]["delta"] = delta
        pieces = [b"data: " + orjson.dumps(event) + b"\n\n" for event in events]
        same(pieces, resumable=True, include_usage=False, continuous_usage=False)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize(("include", "continuous"), MODES)
@pytest.mark.parametrize("continued", [False, True])
def test_hardly_any_event_is_parsed(monkeypatch, chat, counted, include, continuous, continued):
    """Of a recorded stream: otherwise the tests above would show nothing."""
    stream = recorded(chat=chat, continuous=counted, tokens=100, finish="length")
    events = stream.count(b"\n\n") - 1  # but [DONE]
    options = {"include_usage": include, "continuous_usage": continuous}
    parsed = []
    parse = StreamRewriter._chunk
    for kind in (StreamRewriter, ContinuedRewriter):
        monkeypatch.setattr(
            kind, "_chunk", lambda self, *event: (parsed.append(self), parse(self, *event))[1]
        )
    out = same(
        [e + b"\n\n" for e in stream.split(b"\n\n")[:-1]], resumable=True, continued=continued, **options
    )
    assert MODEL.encode() not in out.partition(b"I am")[0]
    quickly = [r for r in parsed if not isinstance(r, ParsingRewriter | ParsingContinuedRewriter)]
    if continued and continuous and counted:
        assert len(quickly) == events  # the counts of both engines must be added
    else:
        assert len(quickly) <= 6
    assert len(parsed) - len(quickly) == events


def test_control_characters_are_written_in_one_way_only():
    """An event is not recognized by its bytes if its text would be written differently."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
    for code in range(0x20):
        escapes = [b"\\u%04x" % code, b"\\u%04X" % code, orjson.dumps(chr(code))[1:-1], bytes([code])]
        pieces = [event % b"x", *(event % escape for escape in escapes)]
        for mode in MODES:
            same(pieces, resumable=True, include_usage=mode[0], continuous_usage=mode[1])
