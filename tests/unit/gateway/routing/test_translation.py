"""Streams and answers for clients that speak another dialect."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.dataplane.reply import ReplyUsage
from gateway.errors import FlorinError
from gateway.routing.engine_answers import MalformedError
from gateway.routing.resume import ResumableStream, ResumeBuffer
from gateway.routing.sse import StreamError, Usage
from gateway.routing.translation import TranslatingRewriter, translated


class Plain:
    """A dialect of lines of text."""

    def __init__(self) -> None:
        self.begun = 0
        self.fast = 0

    def whole(self, answer: dict[str, Any], usage: ReplyUsage) -> bytes:
        return f"{answer['choices'][0]['message']['content']} {usage.prompt}+{usage.completion}".encode()

    def begin(self) -> None:
        self.begun += 1

    def event(self, chunk: dict[str, Any], usage: ReplyUsage) -> bytes:
        delta = chunk["choices"][0]["delta"]
        text = "".join(delta.get("tool_calls", ())) + (delta.get("content") or "")
        return self._line(orjson.dumps(text)[1:-1]) if text else b""

    def text(self, escaped: bytes) -> bytes:
        self.fast += 1
        return self._line(escaped)

    def _line(self, escaped: bytes) -> bytes:
        return b"+" + escaped + b"\n"

    def end(self, usage: ReplyUsage) -> bytes:
        return f". {usage.prompt}+{usage.completion}\n".encode()

    def fail(self, error: FlorinError) -> bytes:
        return f"! {error.code}\n".encode()


def event(text: str | None, completion: int, *, reason: str | None = None, prompt: int = 5) -> bytes:
    delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "fl-1",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        },
    }
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def last(completion: int, prompt: int = 5) -> bytes:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    return b"data: " + orjson.dumps({"id": "c", "choices": [], "usage": usage}) + b"\n\ndata: [DONE]\n\n"


WORDS = ("One ", 'two "', "\n", "drei ü", "\\", "six")
STREAM = b"".join(
    [event(None, 0), *(event(w, n) for n, w in enumerate(WORDS, 1)), event("", 6, reason="stop"), last(6)]
)


@pytest.mark.parametrize("step", [1, 7, len(STREAM)])
def test_a_stream_is_translated_however_it_is_split(step: int) -> None:
    reply = Plain()
    rewriter = TranslatingRewriter(reply, answer=None, so_far=None)
    out = b"".join(rewriter.feed(STREAM[at : at + step]) for at in range(0, len(STREAM), step))
    wanted = b"".join(b"+" + orjson.dumps(word)[1:-1] + b"\n" for word in WORDS) + b". 5+6\n"
    assert out == wanted
    assert rewriter.done
    assert rewriter.usage.exact
    assert reply.begun == 1
    assert reply.fast or step == len(STREAM)


def test_a_resumed_stream_goes_on_where_the_client_is() -> None:
    reply, answer = Plain(), ResumableStream(ResumeBuffer(), "", chat=True, opens=True)
    first = TranslatingRewriter(reply, answer=answer, so_far=None)
    answer.start(b'{"messages":[]}')
    out = first.feed(b"".join([event(None, 0), event("One ", 1), event("two", 2)]))
    assert not answer.keep(first.usage.prompt)
    answer.begin()
    second = TranslatingRewriter(reply, answer=answer, so_far=answer)
    out += second.feed(
        event(None, 0, prompt=7) + event(" three", 1, prompt=7, reason="stop") + last(1, prompt=7)
    )
    assert out == b"+One \n+two\n+ three\n. 5+3\n"
    assert reply.begun == 1


def test_what_a_reply_cannot_read_is_a_malformed_stream() -> None:
    rewriter = TranslatingRewriter(Plain(), answer=None, so_far=None)
    with pytest.raises(StreamError) as caught:
        rewriter.feed(event("x", 1).replace(b'"delta":{', b'"delta":{"tool_calls":3,'))
    assert caught.value.malformed
    with pytest.raises(MalformedError):
        translated(Plain(), {"choices": [{}]}, Usage())


def test_the_end_that_an_engine_owes_is_the_replys() -> None:
    rewriter = TranslatingRewriter(Plain(), answer=None, so_far=None)
    rewriter.feed(event("x", 1, reason="stop"))
    assert rewriter.ending() == b". 5+1\n"
