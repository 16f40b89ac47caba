from __future__ import annotations

import orjson
import pytest

from gateway.routing.sse import StreamError, StreamRewriter


def event(**chunk: object) -> bytes:
    return b"data: " + orjson.dumps({"model": "fl-123", **chunk}) + b"\n\n"


def token(text: str, count: int, index: int = 0, prompt: int = 5) -> bytes:
    return event(
        choices=[{"index": index, "delta": {"content": text}, "finish_reason": None}],
        usage={"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count},
    )


FINAL = event(
    choices=[],
    usage={"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
)
WHOLE = token("He", 1) + token("llo", 2) + token("! \n\n data: [DONE]", 3) + FINAL + b"data: [DONE]\n\n"


def rewriter(*, include: bool = False, continuous: bool = False, **options: int) -> StreamRewriter:
    return StreamRewriter("support", include_usage=include, continuous_usage=continuous, **options)


def chunks(out: bytes) -> list[dict]:
    return [orjson.loads(e[6:]) for e in out.split(b"\n\n") if e and e != b"data: [DONE]"]


def test_the_engines_name_and_the_counts_do_not_show():
    r = rewriter()
    out = r.feed(WHOLE)
    assert b"fl-123" not in out
    assert [c["model"] for c in chunks(out)] == ["support"] * 3
    assert all("usage" not in c for c in chunks(out))
    assert out.endswith(b"data: [DONE]\n\n")
    assert (r.usage.prompt, r.usage.completion, r.usage.cached, r.usage.exact, r.done) == (
        5,
        3,
        4,
        True,
        True,
    )


def test_who_asks_for_usage_gets_it_as_openai_gives_it():
    seen = chunks(rewriter(include=True).feed(WHOLE))
    assert [c["usage"] for c in seen[:-1]] == [None] * 3
    assert seen[-1]["choices"] == []
    assert seen[-1]["usage"]["completion_tokens"] == 3


def test_who_asks_for_running_counts_gets_them():
    seen = chunks(rewriter(include=True, continuous=True).feed(WHOLE))
    assert [c["usage"]["completion_tokens"] for c in seen] == [1, 2, 3, 3]


def test_before_the_end_counts_are_the_last_heard():
    r = rewriter()
    r.feed(token("a", 1) + token("b", 2) + token("c", 3)[:-2])
    assert (r.usage.prompt, r.usage.completion, r.usage.exact, r.done) == (5, 2, False, False)


def test_several_choices_count_their_own_tokens():
    r = rewriter(choices=4, n=2)
    r.feed(token("a", 1, 0) + token("b", 1, 1) + token("c", 1, 2, prompt=4) + token("d", 2, 0))
    assert (r.usage.prompt, r.usage.completion) == (9, 4)


def thinking(completion: int, details: object, index: int = 0) -> bytes:
    return event(
        choices=[{"index": index, "delta": {"reasoning": "hm"}, "finish_reason": None}],
        usage={"prompt_tokens": 5, "completion_tokens": completion, "completion_tokens_details": details},
    )


@pytest.mark.parametrize("nonsense", [-1, 5, True, "3", None, 3.0])
def test_before_the_end_reasoning_is_what_was_last_heard(nonsense):
    r = rewriter()
    r.feed(b"".join(thinking(count, {"reasoning_tokens": count - 1}) for count in (1, 2, 3)))
    assert (r.usage.completion, r.usage.reasoning) == (3, 2)
    r.feed(thinking(4, {"reasoning_tokens": nonsense}) + thinking(4, None) + thinking(4, 7))
    assert (r.usage.completion, r.usage.reasoning, r.usage.unsound) == (4, 2, False)


def test_several_choices_think_for_themselves():
    r = rewriter(choices=2, n=2)
    r.feed(thinking(3, {"reasoning_tokens": 3}) + thinking(4, {"reasoning_tokens": 1}, 1) + token("a", 5))
    r.feed(thinking(6, {"reasoning_tokens": 4}) + thinking(5, {"reasoning_tokens": 6}, 1))
    assert (r.usage.completion, r.usage.reasoning) == (11, 5)


def test_hidden_reasoning_is_counted_and_left_out():
    r, scores = rewriter(hides_reasoning=True), {"content": [{"token": "hm"}]}
    out = b""
    for count, delta in enumerate(
        [
            {"role": "assistant", "content": ""},
            *({"reasoning": "hm"} for _ in range(9)),
            {},  # its end, with the token's score
            {"reasoning": "so", "content": "A"},
            {"content": "b", "reasoning_content": None},
        ]
    ):
        choice = {"index": 0, "delta": delta, "logprobs": scores, "token_ids": [7], "finish_reason": None}
        usage = {"prompt_tokens": 5, "completion_tokens": count}
        out += r.feed(event(choices=[choice], usage=usage))
        assert r.usage.completion == count
        assert r.has_content is (count > 10), "another engine can start over while it thinks"
    seen = [c["choices"][0] for c in chunks(out)]
    assert [c["delta"] for c in seen] == [
        {"role": "assistant", "content": ""},
        {"content": "A"},
        {"content": "b"},
    ]
    assert [(c["logprobs"], c["token_ids"]) for c in seen] == [(scores, [7]), (None, None), (scores, [7])]
    out = r.feed(
        event(choices=[{"index": 0, "delta": {"reasoning": "."}, "finish_reason": "length"}])
        + b"data: [DONE]\n\n"
    )
    assert [c["choices"][0]["delta"] for c in chunks(out)] == [{}]


def test_an_error_event_is_raised_with_what_the_engine_said():
    r = rewriter()
    with pytest.raises(StreamError) as caught:
        r.feed(b'data: {"error": {"message": "too long", "code": 400}}\n\n')
    assert caught.value.status == 400
    assert caught.value.error["message"] == "too long"


def test_a_draining_engines_abort_is_seen():
    r = rewriter()
    r.feed(event(choices=[{"index": 0, "delta": {}, "finish_reason": "abort"}]))
    assert r.aborted


def ended(index: int = 0, reason: str = "stop") -> bytes:
    return event(choices=[{"index": index, "delta": {}, "finish_reason": reason}])


def test_it_closes_when_the_last_choice_has_ended():
    r = rewriter(choices=2)
    r.feed(token("a", 1, 0) + ended(0) + token("b", 1, 1))
    assert not r.closing
    r.feed(ended(1))
    assert (r.closing, r.done) == (True, False)


def test_closing_counts_close_it_too():
    r = rewriter()
    r.feed(token("a", 1) + FINAL)
    assert r.closing


def test_an_end_before_the_answer_has_ended_is_malformed():
    with pytest.raises(StreamError) as caught:
        rewriter().feed(token("a", 1) + b"data: [DONE]\n\n")
    assert caught.value.malformed
