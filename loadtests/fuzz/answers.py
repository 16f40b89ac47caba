"""Hypothesis strategies for what a hostile engine sends: answers, events, metrics, model lists."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from loadtests.fuzz import values
from loadtests.fuzz.hostile import Script, answer
from loadtests.mock_engine import answers as sound

USAGE = {
    "prompt_tokens": 5,
    "total_tokens": 8,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 1},
}
MESSAGE = {"role": "assistant", "content": "I am"}
ERRORS = [
    {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}},
    {
        "error": {
            "message": "The model `x` does not exist.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    },
    {"object": "error", "message": "no", "code": 400},
]
STATUSES = [200] * 6 + [204, 301, 400, 401, 404, 404, 413, 422, 429, 500, 503, 100, 999]


@dataclass(frozen=True, slots=True)
class Case:
    path: str
    stream: bool
    n: int
    script: Script


def _whole(path: str, n: int) -> dict[str, Any]:
    content: dict[str, Any] = {"message": MESSAGE} if "chat" in path else {"text": "I am"}
    choices = [{"index": i, "finish_reason": "stop", "logprobs": None} | content for i in range(n)]
    return {"id": "x", "object": "chat.completion", "model": "m", "choices": choices, "usage": USAGE}


def _events(path: str, n: int) -> list[Any]:
    events: list[Any] = []
    for text, reason in (("", None), ("I", None), (" am", "stop")):
        for index in range(n):
            content: dict[str, Any] = {"delta": {"content": text}} if "chat" in path else {"text": text}
            choice = {"index": index, "finish_reason": reason} | content
            events.append({"id": "x", "model": "m", "choices": [choice], "usage": USAGE})
    return [*events, {"id": "x", "model": "m", "choices": [], "usage": USAGE}]


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """The same JSON with one to three nodes replaced, removed, duplicated or renamed at any depth."""
    copied = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        place: Any = copied
        while isinstance(place, (dict, list)) and place:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            inner = place[key]
            if not isinstance(inner, (dict, list)) or not inner or draw(st.integers(0, 2)) == 0:
                how = draw(st.sampled_from(["replace", "replace", "drop", "wrap"]))
                if how == "drop":
                    del place[key]
                else:
                    place[key] = [inner] if how == "wrap" else draw(values.JSON)
                break
            place = inner
    return copied


def _text(value: st.SearchStrategy[Any]) -> values.Bytes:
    return values.encoded(value.map(values.written) | value.map(values.written) | values.RAW)


@st.composite
def answers(draw: st.DrawFn) -> Case:
    """Answers to a request that is not streamed."""
    path = draw(st.sampled_from(["/v1/chat/completions", "/v1/completions"]))
    n = draw(st.integers(1, 2))
    status = draw(st.sampled_from(STATUSES))
    error = st.sampled_from(ERRORS).flatmap(mutated)
    body = draw(_text(mutated(_whole(path, n)) if status == 200 else error | mutated(_whole(path, n))))
    return Case(path, stream=False, n=n, script=draw(_sent(body, status, "application/json")))


@st.composite
def streams(draw: st.DrawFn) -> Case:
    """Event streams: mutated, cut, joined, duplicated, reordered, interleaved."""
    path = draw(st.sampled_from(["/v1/chat/completions", "/v1/completions"]))
    n = draw(st.integers(1, 2))
    events = _events(path, n)
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(events) - 1))
        how = draw(st.sampled_from(["mutate", "mutate", "mutate", "drop", "twice", "swap", "error"]))
        if how == "mutate":
            events[position] = draw(mutated(events[position]))
        elif how == "drop" and len(events) > 1:
            del events[position]
        elif how == "twice":
            events.insert(position, events[position])
        elif how == "swap":
            events[position], events[-1] = events[-1], events[position]
        else:
            events[position] = draw(st.sampled_from(ERRORS).flatmap(mutated))
    lines = [b"data: " + values.written(event).encode() + b"\n\n" for event in events]
    for _ in range(draw(st.integers(0, 2))):
        odd = [
            b": ping\n\n",
            b"data:\n\n",
            b"\n\n",
            b"event: x\ndata: {}\n\n",
            b"data: [DONE]\n\n",
            b"data: \n\n",
        ]
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(odd) | _text(values.JSON)))
    if draw(st.integers(0, 5)):
        lines.append(sound.DONE)
    body = b"".join(lines)
    if draw(st.integers(0, 4)) == 0:
        position = draw(st.integers(0, len(body)))
        body = (
            body[:position]
            + draw(st.sampled_from([b"", b"\x00", b"\r\n", b"\xff"]))
            + body[position + draw(st.integers(0, 9)) :]
        )
    return Case(path, stream=True, n=n, script=draw(_sent(body, 200, "text/event-stream")))


@st.composite
def _sent(draw: st.DrawFn, body: bytes, status: int, kind: str) -> Script:
    """The response in pieces, mostly with the right length."""
    wrong = draw(st.integers(0, 9))
    length = max(0, len(body) + draw(st.integers(-5, 5))) if wrong == 0 else None
    data = answer(body, status=status, kind=kind, length=length)
    if wrong == 1:
        head = b"HTTP/1.1 %d X\r\ntransfer-encoding: chunked\r\n\r\n" % status
        data = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    elif wrong == 2:
        data = draw(st.binary(max_size=60)) + data[draw(st.integers(0, 40)) :]
    ends = ["keep"] * 4 + ["close", "reset"] if length is None and wrong != 2 else ["close", "reset"]
    return Script(draw(values.split(st.just(data))), draw(st.sampled_from(ends)))


# -- health, metrics and model list

GAUGES = [
    "process_start_time_seconds", "vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total",
    "vllm:generation_tokens_total", "vllm:prompt_tokens_created", "vllm:num_requests_running",
    "vllm:num_requests_waiting",
]  # fmt: skip
FIGURES = st.sampled_from(
    ["0", "1", "7.0", "1e30", "1e999", "9e18", "-1", "-1e30", "NaN", "+Inf", "Inf", "1e", ".", "e", "...",
     "1.2.3", "", "1" * 400, "9223372036854775808", "0x10", "1_000"]
) | values.NUMBERS.map(str)  # fmt: skip


@st.composite
def metrics(draw: st.DrawFn) -> bytes:
    lines = ["# a comment"]
    for name in draw(st.lists(st.sampled_from(GAUGES), min_size=1, max_size=12)):
        labels = draw(
            st.sampled_from(["", '{model_name="base"}', '{engine="0"}', "{", '{a="}"}', '{a="\\n"}'])
        )
        lines.append(f"{name}{labels} {draw(FIGURES)}")
    return "\n".join(lines).encode() + draw(st.sampled_from([b"\n", b"", b"\xff\n", b"\x00"]))


CARD = {"id": "base", "object": "model", "root": "/m", "parent": None, "max_model_len": 9}
CARDS = {"object": "list", "data": [CARD, CARD | {"id": "fl-x", "parent": "base"}]}


@st.composite
def selves(draw: st.DrawFn) -> dict[str, Script]:
    """Scripts for /health, /metrics and /v1/models."""
    scripts: dict[str, Script] = {}
    if draw(st.integers(0, 2)) == 0:
        scripts["/health"] = draw(
            _sent(draw(st.binary(max_size=30)), draw(st.sampled_from(STATUSES)), "text/plain")
        )
    if draw(st.integers(0, 3)):
        body = draw(metrics() | metrics() | st.binary(max_size=300))
        scripts["/metrics"] = draw(_sent(body, 200, "text/plain"))
    if draw(st.booleans()):
        scripts["/v1/models"] = draw(_sent(draw(_text(mutated(CARDS))), 200, "application/json"))
    return scripts
