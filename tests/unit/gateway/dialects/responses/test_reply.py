"""What a chat's answer becomes, as the models of OpenAI's client read it."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from gateway.dataplane.reply import ReplyUsage
from gateway.dialects.responses.items import MOST_SCORES
from gateway.errors import FlorinError
from gateway.fields.response_tools import ToolName
from gateway.routing.engine_answers import MalformedError
from gateway.routing.resume import ResumableStream, ResumeBuffer
from gateway.routing.sse import Usage
from gateway.routing.translation import TranslatingRewriter, translated
from tests.unit.gateway.dialects.responses.answers import (
    Delta,
    chunk,
    events,
    last,
    raw_events,
    reply,
    stream,
    translate,
)

USAGE = ReplyUsage(prompt=5, completion=3, cached=2, reasoning=1)
OPENED = ["response.created", "response.in_progress", "response.output_item.added"]
SHELL = ToolName("shell", custom=True)
TEXT = ["response.content_part.added", "response.output_text.delta"]
TEXT_DONE = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


def call(index: int, name: str | None = None, arguments: str | None = None, **fields: Any) -> Delta:
    function = {"name": name, "arguments": arguments}
    return {
        "tool_calls": [
            {"index": index, "function": {k: v for k, v in function.items() if v is not None}} | fields
        ]
    }


def types(out: bytes) -> list[str]:
    return [one.type for one in events(out)]


def whole(message: dict[str, Any], *, reason: str = "stop", logprobs: Any = None, **options: Any) -> Response:
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": logprobs}
    body = reply(**options).whole({"choices": [choice]}, USAGE)
    return Response.model_validate_json(body)


def final(out: bytes) -> Any:
    return events(out)[-1].response


# -- whole answers


def test_a_text():
    answer = whole({"role": "assistant", "content": 'Ünï "x"\n', "tool_calls": []})
    assert (answer.id, answer.object, answer.status) == ("resp_" + "ab" * 22, "response", "completed")
    assert (answer.created_at, answer.completed_at, answer.model) == (17, 18, "support")
    (message,) = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert answer.output_text == 'Ünï "x"\n'
    assert message.content[0].annotations == []
    assert answer.usage.model_dump() == {
        "input_tokens": 5,
        "input_tokens_details": {
            "cached_tokens": 2, "cache_write_tokens": 0, "cache_write_tokens_details": None
        },
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 8,
    }  # fmt: skip
    assert answer.error is answer.incomplete_details is None


def test_reasoning_text_and_calls_are_items_in_this_order():
    answer = whole(
        {
            "reasoning": "hm", "content": "Wait.",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        reason="tool_calls",
    )  # fmt: skip
    reasoning, message, first, second = answer.output
    assert reasoning.content[0].text == "hm"
    assert reasoning.summary == []
    assert message.content[0].text == "Wait."
    assert (first.call_id, first.name, first.arguments) == ("call_1", "f", '{"a":1}')
    assert (second.call_id, second.name, second.arguments) == ("call_2", "g", "{}")
    assert len({item.id for item in answer.output}) == 4
    assert {item.status for item in answer.output} == {"completed"}


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
def test_the_status_says_how_it_ended(reason: str, status: str, why: str | None):
    streamed = final(translate(reply(), stream([{"content": "Hi"}], reason=reason)))
    for answer in (whole({"content": "Hi"}, reason=reason), streamed):
        assert answer.status == answer.output[0].status == status
        assert (answer.incomplete_details and answer.incomplete_details.reason) == why
        assert (answer.completed_at is None) == (status == "incomplete")


@pytest.mark.parametrize("content", ["", None])
def test_an_empty_answer_is_an_empty_message(content: str | None):
    answer = whole({"content": content})
    assert [part.text for part in answer.output[0].content] == [""]
    out = translate(reply(), stream([]))
    assert types(out) == [*OPENED, TEXT[0], *TEXT_DONE, "response.completed"]
    assert final(out).output == answer.output


def test_the_request_is_repeated():
    body = {
        "model": "support", "instructions": "Be brief.", "max_output_tokens": 7, "metadata": {"tag": "x"},
        "temperature": 0.5, "top_p": 0.9, "tools": [{"type": "function", "name": "f", "parameters": None}],
        "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": False, "user": "u",
        "reasoning": {"effort": "low", "summary": "auto"}, "store": False, "prompt_cache_key": "k",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}, "top_logprobs": 3,
        "safety_identifier": "s", "max_tool_calls": 2,
    }  # fmt: skip
    answer = whole({"content": "Hi"}, body=body).model_dump(exclude_unset=True, by_alias=True)
    different = {"reasoning": {"effort": "low", "summary": None}, "store": False}
    for name, value in (body | different).items():
        assert answer.get(name, False) == value, name
    assert answer["truncation"] == "disabled"
    assert answer["previous_response_id"] is None


# -- streams


def test_a_texts_events():
    out = translate(reply(), stream([{"content": "One "}, {"content": "two"}]))
    assert types(out) == [*OPENED, *TEXT, TEXT[1], *TEXT_DONE, "response.completed"]
    created, *_, done = events(out)
    assert (created.response.status, created.response.output, created.response.usage) == (
        "in_progress",
        [],
        None,
    )
    assert done.response.output_text == "One two"
    assert done.response.usage.output_tokens == 2
    assert created.response.id == done.response.id


def test_every_event_of_an_item_names_it():
    out = translate(reply(), stream([{"reasoning": "hm"}, {"content": "One"}, call(0, "f", "{}", id="c")]))
    ids: dict[int, set[str]] = {}
    for one in raw_events(out):
        if "output_index" in one:
            ids.setdefault(one["output_index"], set()).add(one.get("item_id") or one["item"]["id"])
    assert list(ids) == [0, 1, 2]
    assert all(len(each) == 1 for each in ids.values())
    assert [item.id for item in final(out).output] == [each.pop() for each in ids.values()]


def test_reasoning_closes_before_the_text_opens():
    out = translate(reply(), stream([{"reasoning": "h"}, {"reasoning": "m"}, {"content": "Hi"}]))
    assert types(out) == [
        *OPENED, "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.delta",
        "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
        OPENED[2], *TEXT, *TEXT_DONE, "response.completed",
    ]  # fmt: skip
    assert final(out).output == whole({"reasoning": "hm", "content": "Hi"}).output


def test_calls_follow_each_other():
    deltas = [
        {"content": "Wait."},
        call(0, "f", "", id="call_1", type="function"), call(0, None, '{"a"'), call(0, None, ":1}"),
        call(1, "g", "{}", id="call_2"),
    ]  # fmt: skip
    out = translate(reply(), stream(deltas, reason="tool_calls"))
    assert types(out) == [
        *OPENED, *TEXT, *TEXT_DONE,
        OPENED[2], "response.function_call_arguments.delta", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done",
        OPENED[2], "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done",
        "response.completed",
    ]  # fmt: skip
    said = {
        "content": "Wait.",
        "tool_calls": [
            {"id": "call_1", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "call_2", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    assert final(out).output == whole(said, reason="tool_calls").output


def test_text_after_a_call_is_a_new_message():
    out = translate(
        reply(), stream([{"content": "a"}, call(0, "f", "{}"), {"content": "b"}, {"content": "c"}])
    )
    assert [item.type for item in final(out).output] == ["message", "function_call", "message"]
    assert final(out).output_text == "abc"


def test_a_call_without_an_id_gets_one():
    (item,) = final(translate(reply(), stream([call(0, "f", "{}")]))).output
    assert item.call_id == f"call_{item.id}"


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"input": "ls -l\\n\\"x\\""}', 'ls -l\n"x"'),
        ("ls -l", "ls -l"),
        ('{"input": 5}', '{"input": 5}'),
        ("5", "5"),
    ],
)
def test_a_custom_tools_call_has_its_text(arguments: str, given: str):
    deltas = [call(0, "shell", arguments[:3], id="call_1"), call(0, None, arguments[3:])]
    out = translate(reply(tools=[SHELL]), stream(deltas, reason="tool_calls"))
    assert types(out) == [
        *OPENED, "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    (item,) = final(out).output
    assert (item.type, item.name, item.call_id, item.input) == ("custom_tool_call", "shell", "call_1", given)
    said = {"tool_calls": [{"id": "call_1", "function": {"name": "shell", "arguments": arguments}}]}
    assert whole(said, tools=[SHELL]).output == [item]


def test_a_namespaces_call_has_the_clients_names():
    tools = [ToolName("f", "agents"), ToolName("shell", "agents", custom=True), ToolName("f")]
    arguments = '{"input": "ls"}'
    calls = [("agents__f", "{}"), ("agents__shell", arguments), ("f", "{}"), ("agents__invented", "{}")]
    deltas = [call(i, *named, id=f"call_{i}") for i, named in enumerate(calls)]
    output = final(translate(reply(tools=tools), stream(deltas, reason="tool_calls"))).output
    assert [(item.type, item.namespace, item.name) for item in output] == [
        ("function_call", "agents", "f"), ("custom_tool_call", "agents", "shell"),
        ("function_call", None, "f"), ("function_call", None, "agents__invented"),
    ]  # fmt: skip
    said = [{"id": f"call_{i}", "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(calls)]
    assert whole({"tool_calls": said}, tools=tools).output == output


def score(token: str) -> dict[str, Any]:
    top = {"token": token, "logprob": -0.5, "bytes": list(token.encode())}
    return top | {"top_logprobs": [top, {"token": "?", "logprob": -9999.0, "bytes": None}]}


def test_scores_are_those_of_the_text():
    data = b"".join(
        [
            chunk({"role": "assistant", "content": ""}, 0),
            chunk({"reasoning": "hm"}, 1, logprobs={"content": [score("hm")]}),
            chunk({"content": ""}, 2, logprobs={"content": [score("\n")]}),
            chunk({"content": "One"}, 3, logprobs={"content": [score("One")]}),
            chunk({"content": ""}, 4, reason="stop", logprobs={"content": [score("<end>")]}),
            last(4),
        ]
    )
    out = translate(reply(), data)
    (delta,) = [one for one in events(out) if one.type == "response.output_text.delta"]
    assert [one.token for one in delta.logprobs] == ["\n", "One"]
    assert delta.logprobs[0].top_logprobs[1].logprob == -9999.0
    kept = final(out).output[1].content[0].logprobs
    assert [one.token for one in kept] == ["\n", "One", "<end>"]
    scored = {"content": [score("\n"), score("One"), score("<end>")]}
    assert whole({"content": "One"}, logprobs=scored).output[0].content[0].logprobs == kept
    (done,) = [one for one in events(out) if one.type == "response.output_text.done"]
    assert len(done.logprobs) == 3


def test_scores_of_calls_are_nobodys():
    data = [chunk({"role": "assistant", "content": ""}, 0)]
    data.append(chunk(call(0, "f", "{}"), 1, logprobs={"content": [score("{}")]}))
    data.append(chunk({"content": "One"}, 2, reason="stop", logprobs={"content": [score("One")]}))
    out = translate(reply(), b"".join([*data, last(2)]))
    assert [one.token for one in final(out).output[1].content[0].logprobs] == ["One"]


def test_many_scores_are_in_the_deltas_only():
    """The end would have them four times; a stream of a long answer would not fit into memory."""
    scored = {"content": [score("One")]}
    each = len(chunk({"content": "One"}, 1, logprobs=scored))
    count = 2 * MOST_SCORES // each * 2
    data = [chunk({"content": "One"}, n, logprobs=scored) for n in range(1, count + 1)]
    out = translate(reply(), b"".join([*data, chunk({"content": ""}, count, reason="stop"), last(count)]))
    deltas = [one for one in events(out) if one.type == "response.output_text.delta"]
    assert all(len(one.logprobs) == 1 for one in deltas)
    [message] = final(out).output
    assert message.content[0].logprobs == []
    assert len(message.content[0].text) == 3 * count


def test_scores_that_wait_for_text_are_few():
    scored = {"content": [score("?")]}
    data = [chunk({"content": ""}, n, logprobs=scored) for n in range(1, 1000)]
    out = translate(reply(), b"".join([*data, chunk({"content": "One"}, 1000, reason="stop"), last(1000)]))
    assert len(final(out).output[0].content[0].logprobs) < 100


# -- ends and failures


def test_nothing_that_looks_like_the_end_goes_out_before_it():
    to = reply()
    rewriter = TranslatingRewriter(to, answer=None, so_far=None)
    out = rewriter.feed(chunk({"role": "assistant", "content": ""}, 0) + chunk({"content": "Hi"}, 1))
    out += rewriter.feed(chunk({"content": "!"}, 2, reason="stop"))
    assert rewriter.closing
    assert types(out) == [*OPENED, *TEXT, TEXT[1]]
    assert rewriter.feed(last(2)).startswith(b"event: response.output_text.done\n")


def test_hidden_reasoning_is_no_item():
    data = stream([{"reasoning": "hm"}, {"reasoning": "so", "content": "A"}, {"content": "b"}])
    out = TranslatingRewriter(reply(), answer=None, so_far=None, hides_reasoning=True).feed(data)
    assert [item.type for item in final(out).output] == ["message"]
    assert final(out).output_text == "Ab"
    assert b"reasoning_text" not in out


def test_a_failure_in_the_middle_ends_with_the_answer_so_far():
    to = reply()
    rewriter = TranslatingRewriter(to, answer=None, so_far=None)
    out = rewriter.feed(b"".join([chunk({"reasoning": "hm"}, 1), chunk({"content": "Hi"}, 2)]))
    out += to.fail(FlorinError("stream_interrupted", 'The engine "x" failed.', param=None))
    *_, error, failed = events(out)
    assert (error.type, error.code, error.message) == (
        "error",
        "stream_interrupted",
        'The engine "x" failed.',
    )
    assert failed.type == "response.failed"
    assert failed.response.status == "failed"
    assert (failed.response.error.code, failed.response.error.message) == (
        "server_error",
        'The engine "x" failed.',
    )
    assert failed.response.usage is None
    assert [item.status for item in failed.response.output] == ["completed", "incomplete"]
    assert failed.response.output_text == "Hi"


def test_a_failure_before_the_first_event():
    assert types(reply().fail(FlorinError("shutting_down", "Bye."))) == [
        "response.created", "response.in_progress", "error", "response.failed",
    ]  # fmt: skip


def test_another_attempt_starts_over():
    to = reply()
    TranslatingRewriter(to, answer=None, so_far=None).feed(chunk({"content": "lost"}, 1))
    assert translate(to, stream([{"content": "Hi"}])) == translate(reply(), stream([{"content": "Hi"}]))


def test_a_resumed_stream_is_one_answer():
    to, answer = reply(), ResumableStream(ResumeBuffer(), "", chat=True, opens=True)
    first = TranslatingRewriter(to, answer=answer, so_far=None)
    answer.start(b'{"messages":[]}')
    out = first.feed(
        chunk({"role": "assistant", "content": ""}, 0)
        + chunk({"content": "One "}, 1)
        + chunk({"content": "two"}, 2)
    )
    assert not answer.keep(first.usage.prompt)
    answer.begin()
    second = TranslatingRewriter(to, answer=answer, so_far=answer)
    role = {"role": "assistant", "content": ""}
    out += second.feed(chunk(role, 0, prompt=7) + chunk({"content": " three"}, 1, prompt=7, reason="stop"))
    out += second.feed(last(1, prompt=7))
    assert types(out) == [*OPENED, *TEXT, TEXT[1], TEXT[1], *TEXT_DONE, "response.completed"]
    answer_ = final(out)
    assert answer_.output_text == "One two three"
    assert (answer_.usage.input_tokens, answer_.usage.output_tokens) == (5, 3)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": 5}, {"content": ["x"]}, {"reasoning": {}, "content": 5}, {"tool_calls": 5}, {"tool_calls": [5]},
        {"tool_calls": [{}]}, {"tool_calls": [{"index": 0, "function": {"name": 5}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"tool_calls": [{"index": 0, "id": 5, "function": {"name": "f"}}]},
        {"tool_calls": [{"index": 0, "function": "f"}]},
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_malformed(delta: Delta):
    with pytest.raises(MalformedError):
        translated(reply(), {"choices": [{"index": 0, "message": delta}]}, Usage())


@pytest.mark.parametrize(
    "logprobs",
    [5, {}, {"content": [5]}, {"content": [{"token": 5, "logprob": 1}]}, {"content": [{"token": "a"}]}],
)
def test_scores_that_cannot_be_read_are_malformed(logprobs: Any):
    with pytest.raises(MalformedError):
        translated(reply(), {"choices": [{"message": {"content": "a"}, "logprobs": logprobs}]}, Usage())


def test_the_engines_names_stay_inside():
    out = translate(reply(), stream([{"content": "Hi"}]))
    assert b"fl-1" not in out
    assert b"chatcmpl" not in out
