"""An engine's chat, whole and as events, and what a Responses client makes of the translation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.dialects.responses.envelope import Envelope, echo
from gateway.dialects.responses.reply import ResponsesReply
from gateway.fields.response_tools import ToolName, sent_name
from gateway.routing.translation import TranslatingRewriter

Delta = dict[str, Any]
BODY = {"model": "support", "input": "Hi", "stream": True}
_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_FIELDS = ("created_at", "completed_at")


def reply(body: dict[str, Any] = BODY, tools: Sequence[ToolName] = ()) -> ResponsesReply:
    known = {sent_name(tool.name, tool.namespace): tool for tool in tools}
    return ResponsesReply(Envelope("ab" * 22, 17, echo(body)), tools=known, clock=lambda: 18.0)


def chunk(
    delta: Delta, completion: int, *, reason: str | None = None, logprobs: Any = None, prompt: int = 5
) -> bytes:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    return b"data: %b\n\n" % orjson.dumps(
        {
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fl-1",
            "choices": [choice], "usage": usage,
        }
    )  # fmt: skip


def last(completion: int, prompt: int = 5, **details: Any) -> bytes:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    return b"data: %b\n\ndata: [DONE]\n\n" % orjson.dumps(
        {"id": "c", "choices": [], "usage": usage | details}
    )


def stream(deltas: Sequence[Delta], *, reason: str = "stop") -> bytes:
    events = [chunk({"role": "assistant", "content": ""}, 0)]
    events += [chunk(delta, n) for n, delta in enumerate(deltas, 1)]
    return b"".join([*events, chunk({"content": ""}, len(deltas), reason=reason), last(len(deltas))])


def translate(to: ResponsesReply, data: bytes, step: int = 0) -> bytes:
    rewriter = TranslatingRewriter(to, answer=None, so_far=None)
    step = step or len(data)
    return b"".join(rewriter.feed(data[at : at + step]) for at in range(0, len(data), step))


def events(out: bytes) -> list[Any]:
    """The client's events, each checked against the client's own model and numbered without a gap."""
    found = [_EVENTS.validate_python(one) for one in raw_events(out)]
    assert [one.sequence_number for one in found] == list(range(len(found)))
    return found


def raw_events(out: bytes) -> Iterator[dict[str, Any]]:
    assert out.endswith(b"\n\n")
    for part in out[:-2].split(b"\n\n"):
        name, data = part.split(b"\n")
        assert data.startswith(b"data: ")
        one = orjson.loads(data[6:])
        assert name == b"event: " + one["type"].encode()
        yield one
