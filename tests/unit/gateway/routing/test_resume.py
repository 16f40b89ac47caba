"""When a stream can be resumed, and with what request; by hand."""

from __future__ import annotations

import orjson
import pytest

from gateway.fields.tables import CHAT, COMPLETIONS
from gateway.routing import resume
from gateway.routing.resume import ResumableStream, ResumeBuffer, continuation, obstacle
from gateway.routing.sse import ContinuedRewriter, StreamRewriter

HELLO = [{"role": "user", "content": "Hello"}]
CHAT_BODY = {"messages": HELLO, "stream": True}
TEXT_BODY = {"prompt": "Hello", "stream": True}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0, "seed": 7},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2},
        {"logit_bias": {"5": 1}, "allowed_token_ids": [1], "stop_token_ids": [2], "ignore_eos": True},
        {"stop": "\n"},
        {"stop": [".", "!"], "min_tokens": 3, "max_tokens": 9},
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "bad_words": []},
        {"skip_special_tokens": True, "response_format": {"type": "text"}},
    ],
    ids=str,
)
def test_what_decides_step_by_step_can_be_resumed(more):
    assert obstacle(CHAT_BODY | more) == ""
    assert obstacle(TEXT_BODY | more) == ""


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"n": 2}, "n"),
        ({"presence_penalty": 0.1}, "presence_penalty"),
        ({"frequency_penalty": -0.1}, "frequency_penalty"),
        ({"seed": 7}, "seed"),
        ({"seed": 7, "temperature": 0.1}, "seed"),
        ({"stop": "END"}, "stop"),
        ({"stop": ["a", "END"]}, "stop"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"structured_outputs": {"regex": "x"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"repetition_detection": {}}, "repetition_detection"),
        ({"of_another_release": 1}, "of_another_release"),
    ],
    ids=str,
)
def test_what_depends_on_more_cannot(more, what):
    assert obstacle(CHAT_BODY | more) == what
    assert obstacle(TEXT_BODY | more) == what


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (CHAT_BODY | {"logprobs": True, "top_logprobs": 2}, "logprobs"),
        (CHAT_BODY | {"tools": [{"type": "function"}]}, "tools"),
        (CHAT_BODY | {"tool_choice": "required"}, "tool_choice"),
        (CHAT_BODY | {"include_reasoning": False}, "include_reasoning"),
        (CHAT_BODY | {"add_generation_prompt": False}, "add_generation_prompt"),
        (CHAT_BODY | {"continue_final_message": True, "add_generation_prompt": False}, ""),
        (
            CHAT_BODY | {"messages": [{"role": "assistant", "content": []}], "continue_final_message": True},
            "messages",
        ),
        (CHAT_BODY | {"continue_final_message": True, "messages": [{"role": "assistant"}]}, "messages"),
        (CHAT_BODY | {"continue_final_message": False, "add_generation_prompt": True}, ""),
        (TEXT_BODY | {"logprobs": 0}, "logprobs"),
        (TEXT_BODY | {"echo": True}, "echo"),
        (TEXT_BODY | {"suffix": "x"}, "suffix"),
        (TEXT_BODY | {"prompt": ["Hello"]}, "prompt"),
        (TEXT_BODY | {"prompt": [1, 2]}, "prompt"),
    ],
    ids=str,
)
def test_each_endpoint_has_its_own(body, what):
    assert obstacle(body) == what


def test_the_rule_names_fields_that_there_are():
    assert resume._HARMLESS | resume._IF.keys() <= CHAT.keys() | COMPLETIONS.keys()


def asked(body, text=" there", tokens=3):
    return orjson.loads(continuation(orjson.dumps(body), text, tokens))


def test_a_chat_goes_on_in_an_assistants_message():
    made = asked(CHAT_BODY | {"model": "m", "max_tokens": 10, "max_completion_tokens": 5, "min_tokens": 2})
    assert made == {
        "messages": [*HELLO, {"role": "assistant", "content": " there"}],
        "stream": True, "model": "m", "max_tokens": 7, "max_completion_tokens": 2, "min_tokens": 0,
        "continue_final_message": True, "add_generation_prompt": False,
    }  # fmt: skip


def test_a_message_that_is_continued_already_is_continued_further():
    body = CHAT_BODY | {
        "messages": [*HELLO, {"role": "assistant", "name": "x", "content": "Hi"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert asked(body)["messages"] == [*HELLO, {"role": "assistant", "name": "x", "content": "Hi there"}]


def test_a_prompt_is_made_longer_and_the_engines_own_limit_smaller():
    assert asked(TEXT_BODY) == TEXT_BODY | {"prompt": "Hello there", "max_tokens": 13}
    assert asked(TEXT_BODY | {"max_tokens": 5})["max_tokens"] == 2


# -- what the client has


def event(text=None, count=0, *, prompt=5, finish=None, id_="e1", **delta):
    said = delta if text is None else {"content": text} | delta
    chunk = {
        "id": id_, "object": "chat.completion.chunk", "created": 7, "model": "fl",
        "choices": [{"index": 0, "delta": said, "finish_reason": finish}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count},
    }  # fmt: skip
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def final(count, prompt):
    usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
    details = {"prompt_tokens_details": {"cached_tokens": 3}}
    return (
        b"data: "
        + orjson.dumps({"id": "e2", "created": 9, "choices": [], "usage": usage | details})
        + b"\n\n"
    )


OPENING = event("", role="assistant")


def answer(room=None, **options):
    made = ResumableStream(room or ResumeBuffer(), "", **{"chat": True, "opens": True, **options})
    made.start(orjson.dumps(CHAT_BODY))
    return made


def heard(made, *events):
    made.begin()
    rewriter = StreamRewriter("m", include_usage=True, continuous_usage=True, answer=made)
    for one in events:
        rewriter.feed(one)
    return rewriter


def test_the_second_engines_events_are_those_of_one_answer():
    made = answer()
    heard(made, OPENING, event("He", 1), event("llo", 2))
    assert made.keep(5) == ""
    assert (made.read, orjson.loads(made.resume())["messages"][-1]["content"]) == (7, "Hello")
    made.begin()
    rewriter = ContinuedRewriter("m", made, include_usage=True, continuous_usage=True)
    events = [
        event("", prompt=7, id_="e2", role="assistant"),
        event(" you", 1, prompt=7, id_="e2"),
        event("", 2, prompt=7, id_="e2", finish="stop"),
        final(2, 7),
        b"data: [DONE]\n\n",
    ]
    chunks = [orjson.loads(e[6:]) for e in rewriter.feed(b"".join(events)).split(b"\n\n")[:-2]]
    assert {(c["id"], c["created"], c["model"]) for c in chunks} == {("e1", 7, "m")}
    assert [c["choices"][0]["delta"] for c in chunks[:-1]] == [{"content": " you"}, {"content": ""}]
    counts = [(c["usage"]["prompt_tokens"], c["usage"]["completion_tokens"]) for c in chunks]
    assert counts == [(5, 3), (5, 4), (5, 4)]
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9, "prompt_tokens_details": None,
    }  # fmt: skip
    assert (rewriter.usage.prompt, rewriter.usage.completion, rewriter.usage.exact) == (7, 2, True)
    assert (made.tokens, made.text) == (3, "Hello you")  # the end has no text


def test_tokens_without_text_are_left_to_the_next_engine():
    """Parts of a character: the count must be that of the text."""
    made = answer()
    heard(made, OPENING, event("He", 1), event("", 2), event("", 3))
    assert (made.keep(5), made.before, made.read) == ("", 1, 6)


def test_what_was_not_delivered_is_forgotten():
    made = answer()
    heard(made, OPENING, event("He", 1))
    made.begin()
    assert (made.text, made.tokens, made.head) == ("", 0, {})
    heard(made, event("", id_="e3", role="assistant"), event("Hello", 1, id_="e3"))
    made.keep(5)
    heard(made, event(" wor", 1))
    made.begin()
    assert (made.text, made.tokens, made.head["id"]) == ("Hello", 1, "e3")


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([OPENING], "counts"),
        ([OPENING, event("He", 1), event(reasoning="hm", count=2)], "reasoning"),
        ([OPENING, event("He", 1), event(tool_calls=[{"index": 0}], count=2)], "tool_calls"),
        ([OPENING, event("He", 1), event("llo", 2, refusal=None)], ""),
        ([OPENING, event("He", 1), event(". ", 2)], "white space"),
        ([OPENING, event("\n\nHe", 1)], "white space"),
    ],
    ids=["nothing", "thoughts", "tools", "nulls", "end", "begin"],
)
def test_some_texts_cannot_be_continued(events, why):
    made = answer()
    heard(made, *events)
    assert made.keep(5) == why


def test_white_space_is_trusted_where_no_template_prints_it():
    made = answer(chat=False, opens=False)
    heard(made, OPENING, event(" He ", 1))
    assert made.keep(5) == ""


def test_without_the_engines_counts_nothing_is_resumed():
    made = answer()
    heard(made, OPENING, event("He", 1))
    assert made.keep(0) == "counts"


def test_an_answer_is_resumed_a_few_times():
    made = answer()
    for number in range(resume.MOST_RESUMES):
        heard(made, event("He", 1))
        assert made.keep(5 + number) == ""
        made.resume()
    heard(made, event("He", 1))
    assert made.keep(9) == "resumed too often"


def test_room_is_taken_for_as_long_as_it_is_needed():
    room = ResumeBuffer(20_000)
    made = answer(room)
    heard(made, OPENING, *(event("x" * 1000, n) for n in range(1, 10)))
    assert repr(room) != repr(ResumeBuffer(20_000))
    assert len(made.text) == 9000
    other = answer(room)
    heard(other, OPENING, *(event("x" * 1000, n) for n in range(1, 20)))
    assert (other.keep(5), other.text) == ("size", "")
    made.end()
    other.end()
    other.end()
    assert repr(room) == repr(ResumeBuffer(20_000))


def test_one_answer_keeps_no_more_than_it_may(monkeypatch):
    monkeypatch.setattr(resume, "MOST_BYTES", 10_000)
    made = answer()
    heard(made, OPENING, *(event("x" * 1000, n) for n in range(1, 20)))
    assert made.keep(5) == "size"
    assert (made.payload, made.text) == (b"", "")


def test_events_before_a_bad_one_are_there_for_the_client():
    made = answer()
    rewriter = heard(made, OPENING, event("He", 1))
    with pytest.raises(Exception, match="not JSON"):
        rewriter.feed(event("llo", 2) + b"data: {\n\n")
    assert b"llo" in rewriter.unsent
    assert made.text == "Hello"
