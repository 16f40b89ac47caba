from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.complexity import Complexity
from gateway.batches.lines import BadLineError, Line, LineError, LineSplitter, answered, not_run, read_line
from gateway.batches.validation import Validation

CHAT = "/v1/chat/completions"
GOOD = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "support", "messages": []}}


def split(content: bytes, sizes: list[int], limit: int = 100) -> list[tuple[int, bytes]]:
    splitter, found = LineSplitter(limit), []
    for size in [*sizes, len(content)]:
        part, content = content[:size], content[size:]
        found += splitter.feed(part)
    return [*found, *splitter.end()]


@given(
    st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=8),
    st.lists(st.integers(0, 9), max_size=20),
)
def test_lines_are_the_same_however_they_arrive(lines: list[bytes], sizes: list[int]):
    expected = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    assert split(b"\n".join(lines), sizes) == expected
    assert split(b"\r\n".join(lines), sizes) == expected


@pytest.mark.parametrize("ending", [b"", b"\n", b"\nx"])
def test_a_line_that_is_too_long_is_named(ending: bytes):
    with pytest.raises(BadLineError) as caught:
        split(b"x\n" + b"y" * 11 + ending, [3, 3], limit=10)
    assert (caught.value.error.code, caught.value.error.line) == ("line_too_long", 2)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"custom_id": ""}, "invalid_custom_id"),
        ({"custom_id": "x" * 513}, "invalid_custom_id"),
        ({"custom_id": None}, "invalid_custom_id"),
        ({"method": "post"}, "invalid_method"),
        ({"url": "/v1/embeddings"}, "invalid_url"),
        ({"url": [CHAT]}, "invalid_url"),
        ({"body": []}, "invalid_body"),
        ({"body": {}}, "invalid_model"),
        ({"body": {"model": 1}}, "invalid_model"),
        ({"body": {"model": "m", "stream": True}}, "stream_not_supported"),
        ({"body": {"model": "m", "stream": "yes"}}, "stream_not_supported"),
    ],
)
def test_what_is_wrong_with_a_line(change: dict, code: str):
    with pytest.raises(BadLineError) as caught:
        read_line(1, json.dumps(GOOD | change).encode(), CHAT)
    assert caught.value.error.code == code


def test_lines_of_the_output_and_error_file():
    line = Line(2, 'é"\n', {})
    done = answered("batch_1", line, 200, "req-1", b'{"a":[1]}')
    assert done.count(b"\n") == 1
    told = orjson.loads(done)
    assert told["custom_id"] == 'é"\n'
    assert told["response"] == {"status_code": 200, "request_id": "req-1", "body": {"a": [1]}}
    assert told["error"] is None
    lost = orjson.loads(not_run("batch_1", line, "batch_expired"))
    assert (lost["response"], lost["error"]["code"]) == (None, "batch_expired")
    assert lost["id"] == told["id"] != orjson.loads(not_run("batch_2", line, "batch_expired"))["id"]


COMPLEXITY = Complexity(values=50, containers=20, depth=20)


def validated(*lines: dict, most: int = 10) -> list[LineError]:
    def check(model: str) -> LineError | None:
        return None if model == "support" else LineError("model_not_found", f"No {model}.")

    validation = Validation(CHAT, most_lines=most, complexity=COMPLEXITY, check_model=check)
    for number, line in enumerate(lines, 1):
        validation.add(number, json.dumps(line).encode())
    return validation.end()


def test_a_file():
    assert validated(GOOD, GOOD | {"custom_id": "b"}) == []
    assert [e.code for e in validated()] == ["empty_file"]
    [again] = validated(GOOD, GOOD)
    assert (again.code, again.line) == ("duplicate_custom_id", 2)
    [missing] = validated(GOOD, GOOD | {"custom_id": "b", "body": {"model": "x"}})
    assert (missing.code, missing.line, missing.param) == ("model_not_found", 2, "body.model")


def test_a_line_that_would_take_long_to_parse():
    complex_line = GOOD | {"custom_id": "b", "body": {"model": "support", "messages": [{}] * 20}}
    [refused] = validated(GOOD, complex_line)
    assert (refused.code, refused.line) == ("body_too_complex", 2)


def test_a_file_with_too_many_lines():
    many = [GOOD | {"custom_id": str(n)} for n in range(3)]
    assert validated(*many, most=3) == []
    assert [(e.code, e.line) for e in validated(*many, most=2)] == [("too_many_lines", None)]
