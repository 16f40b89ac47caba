from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evaluations.cases import MOST_BYTES, MOST_CASES, BadDataError, read_cases


def lines(*found: object) -> bytes:
    return b"\n".join(json.dumps(line).encode() for line in found)


def test_the_formats():
    user = {"role": "user", "content": "Hi"}
    chat = {"messages": [user, {"role": "assistant", "content": "Hello"}], "tools": [{}], "weight": 1}
    [case] = read_cases(lines(chat), references=True)
    assert (case.request, case.expected, case.question) == (
        {"tools": [{}], "messages": [user]},
        "Hello",
        "Hi",
    )
    [case] = read_cases(lines({"prompt": "1+1=", "completion": "2"}), references=True)
    assert (case.request, case.expected, case.chat) == ({"prompt": "1+1="}, "2", False)
    [case] = read_cases(b"\xef\xbb\xbf" + lines({"input": "Hi", "expected": ""}), references=False)
    assert (case.request, case.expected) == ({"messages": [user]}, "")


def test_blank_lines_count_and_a_limit_stops_the_reading():
    content = b"\r\n" + lines({"input": "a"}) + b"\r\n\n" + lines({"input": "b"}) + b"\n{"
    assert [case.line for case in read_cases(content, references=False, limit=2)] == [2, 4]
    with pytest.raises(BadDataError, match="line 5: not valid JSON"):
        read_cases(content, references=False)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\xff", "not valid JSON"),
        (b"[" * 5000, "not valid JSON"),
        (b"7", "not a JSON object"),
        (b'{"text": "x"}', "exactly one of"),
        (b'{"input": "x", "prompt": "x"}', "exactly one of"),
        (b'{"messages": "x"}', "list of messages"),
        (b'{"messages": []}', "list of messages"),
        (b'{"messages": [{}]}', "no `role`"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "before the expected answer"),
        (b'{"messages": [{"role": "user"}, {"role": "assistant", "tool_calls": []}]}', "must be text"),
        (b'{"input": 7}', "`input` must be text"),
        (b'{"input": "x", "expected": 7}', "`expected` must be text"),
        (b'{"prompt": ""}', "`prompt` must be text"),
        (b'{"prompt": "x", "completion": "y"}', "use one format"),
    ],
)
def test_rubbish_is_named_by_its_line(line: bytes, why: str):
    before = lines({"input": "x", "expected": "y"}) if b"completion" in line else b""
    with pytest.raises(BadDataError, match=f"line 2: .*{why}"):
        read_cases(before + b"\n" + line, references=False)


def test_sizes_are_bounded():
    with pytest.raises(BadDataError, match="bytes"):
        read_cases(b"x" * (MOST_BYTES + 1), references=False)
    with pytest.raises(BadDataError, match="more than"):
        read_cases(lines({"input": "x"}) * 1 + b"\n" + b'{"input": "x"}\n' * MOST_CASES, references=False)
    with pytest.raises(BadDataError) as caught:
        read_cases(b"{\n" * 100, references=False)
    assert str(caught.value).count("not valid JSON") == 5


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes):
    with contextlib.suppress(BadDataError):
        assert read_cases(content, references=False)
