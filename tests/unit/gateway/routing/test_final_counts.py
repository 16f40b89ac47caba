"""Streams of engines that count at the end only, as TGI and LoRAX send them."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from gateway.routing.final_counts import FinalCounts
from gateway.routing.sse import StreamError, StreamRewriter

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
ZERO = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def event(chunk: dict[str, Any]) -> bytes:
    return b"data:" + orjson.dumps(chunk) + b"\n\n"


def chat(content: str, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": finish}
    return event({"id": "", "object": "chat.completion.chunk", "created": 1, "choices": [choice], **more})


def text(said: str, finish: str = "", index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "text": said, "finish_reason": finish, "logprobs": None}
    return event({"id": "", "object": "text_completion", "created": 1, "choices": [choice], **more})


TGI_CHAT = (
    chat("I am") + chat(" here", None) + chat("", "stop") + event({"choices": [], "usage": USAGE}) + DONE
)
TGI_TEXT = text("I am") + b": ping\n\n" + text(" here") + text("", "eos_token", usage=USAGE) + DONE
LORAX_CHAT = chat("I am") + chat(" here") + chat("", "stop", usage=USAGE) + DONE
LORAX_TEXT = text("I am", usage=ZERO) + text(" here", usage=ZERO) + text("", "stop", usage=USAGE) + DONE


def read(data: bytes, size: int, *, include: bool = True) -> tuple[bytes, StreamRewriter]:
    counts = FinalCounts(prompt=9, prompts=1, n=1)
    rewriter = StreamRewriter("support", include_usage=include, continuous_usage=False)
    out = b"".join(rewriter.feed(counts.feed(data[at : at + size])) for at in range(0, len(data), size))
    return out, rewriter


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("data", [TGI_CHAT, TGI_TEXT, LORAX_CHAT, LORAX_TEXT])
def test_a_stream_ends_with_the_engines_counts(data: bytes, size: int):
    out, rewriter = read(data, size)
    assert rewriter.done
    assert rewriter.usage.exact
    assert not rewriter.usage.unsound
    assert (rewriter.usage.prompt, rewriter.usage.completion) == (11, 3)
    *chunks, last = [orjson.loads(line[6:]) for line in out.split(b"\n\n")[:-2]]
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert all(chunk["usage"] is None and chunk["model"] == "support" for chunk in chunks)
    assert out.endswith(DONE)
    without, _ = read(data, size, include=False)
    assert b"usage" not in without


@pytest.mark.parametrize("data", [TGI_CHAT, TGI_TEXT, LORAX_CHAT, LORAX_TEXT])
def test_until_then_each_chunk_with_text_is_a_token(data: bytes):
    counts = FinalCounts(prompt=9, prompts=1, n=1)
    rewriter = StreamRewriter("support", include_usage=False, continuous_usage=False)
    first, second, *_ = data.replace(b": ping\n\n", b"").split(b"\n\n")
    for said, chunk in enumerate((first, second), 1):
        rewriter.feed(counts.feed(chunk + b"\n\n"))
        assert (rewriter.usage.prompt, rewriter.usage.completion) == (9, said)
    assert not rewriter.usage.exact
    assert not counts.final


def test_the_counts_of_several_prompts_are_summed():
    data = text("a") + text("b", index=1) + text("", "length", usage=USAGE)
    data += text("", "length", index=1, usage=USAGE) + DONE
    counts = FinalCounts(prompt=20, prompts=2, n=1)
    rewriter = StreamRewriter("m", include_usage=True, continuous_usage=False, choices=2, n=1)
    rewriter.feed(counts.feed(data))
    assert (rewriter.usage.prompt, rewriter.usage.completion, rewriter.usage.exact) == (22, 6, True)


@pytest.mark.parametrize(
    "rubbish",
    [b"data: [1]\n\n", b"data: {}\n\n", b"data:nothing\n\n", event({"choices": 5}), event({"choices": [5]}),
     event({"choices": [{}]}), event({"choices": [{"index": 0, "text": "x", "finish_reason": 3}]}), DONE],
)  # fmt: skip
def test_rubbish_is_seen_by_whoever_reads_on(rubbish: bytes):
    counts = FinalCounts(prompt=9, prompts=1, n=1)
    rewriter = StreamRewriter("m", include_usage=True, continuous_usage=False)
    rewriter.feed(counts.feed(text("a")))
    with pytest.raises(StreamError):
        rewriter.feed(counts.feed(rubbish))


@pytest.mark.parametrize("prompt", [2**60, -1, "11", 1.5, [], True, 2**70])
def test_impossible_counts_are_ignored(prompt: Any):
    chunk = text("", "stop", usage={"prompt_tokens": "PROMPT", "completion_tokens": 1})
    data = text("a") + chunk.replace(b'"PROMPT"', json.dumps(prompt).encode()) + DONE
    _, rewriter = read(data, 10_000)
    assert rewriter.done
    assert rewriter.usage.unsound
    assert (rewriter.usage.prompt, rewriter.usage.completion, rewriter.usage.exact) == (9, 1, False)


def test_errors_in_words_are_errors():
    counts = FinalCounts(prompt=9, prompts=1, n=1)
    rewriter = StreamRewriter("m", include_usage=True, continuous_usage=False)
    with pytest.raises(StreamError) as raised:
        rewriter.feed(
            counts.feed(event({"error": "Incomplete generation", "error_type": "incomplete_generation"}))
        )
    assert (raised.value.status, raised.value.malformed) == (500, False)
    assert raised.value.error == {"message": "Incomplete generation"}
