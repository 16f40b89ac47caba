"""A connection that recognizes repeated heads reads every request as llhttp alone does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.request_head import RepeatedHead, RequestHead, repeatable

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nAuthorization: Bearer k\r\n\r\n"
)


def parse(data: bytes) -> list[tuple[bytes, list[tuple[bytes, bytes]], bytes, bool]]:
    """What llhttp reads: target, headers and body of each complete request, and whether the connection stays.
    Raises HttpParserError."""
    requests: list[tuple[bytes, list[tuple[bytes, bytes]], bytes, bool]] = []
    state: dict[str, Any] = {}
    handler = SimpleNamespace(
        on_message_begin=lambda: state.update(url=b"", headers=[], body=b""),
        on_url=lambda url: state.update(url=state["url"] + url),
        on_header=lambda name, value: state["headers"].append((name.lower(), value)),
        on_body=lambda body: state.update(body=state["body"] + body),
        on_message_complete=lambda: requests.append(
            (state["url"], state["headers"], state["body"], parser.should_keep_alive())
        ),
    )
    parser = httptools.HttpRequestParser(handler)
    parser.feed_data(data)
    return requests


def learn(data: bytes) -> RepeatedHead | None:
    """The repeated head after this first request; None: there is none."""
    try:
        [(url, headers, _, keep_alive)] = parse(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError):
        return None
    head = RequestHead(
        "POST", url.decode("latin-1"), url, b"", headers, "1.1", keep_alive, expects_continue=False
    )
    return repeatable(data, head)


NAMES = [
    "Content-Length",
    "content-length",
    "X-Content-Length",
    "Host",
    "Transfer-Encoding",
    "A",
    "Connection",
]
VALUES = [
    "2",
    "02",
    " 2",
    "2 ",
    "content-length: 3",
    "chunked",
    "keep-alive",
    "close",
    "",
    "x\tcontent-length: 1",
]
headers = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=5)


def request(lines: list[tuple[str, str]], body: bytes) -> bytes:
    text = "".join(f"{name}:{value}\r\n" for name, value in lines)
    return b"POST /v1/x HTTP/1.1\r\n" + text.encode() + b"\r\n" + body


@given(headers, st.sampled_from([b"", b"{}", b"{}{}", b"\r\n"]), st.data())
def test_recognized_request_is_what_llhttp_reads(
    lines: list[tuple[str, str]], body: bytes, data: st.DataObject
):
    first = request(lines, body)
    repeated = learn(first)
    if repeated is None:
        return
    cut = data.draw(st.integers(0, len(first)))
    end = data.draw(st.integers(cut, len(first)))
    middle = data.draw(
        st.sampled_from([b"", b"0", b"3", b"12", b"\r\n", b" ", b"GET / HTTP/1.1\r\n\r\n", b"{}"])
    )
    second = first[:cut] + middle + first[end:]
    found = repeated.body(second)
    if found is not None:
        [(url, read, parsed, keep_alive)] = parse(second)
        assert (url, parsed, keep_alive) == (repeated.head.raw_path, found, True)
        assert [h for h in read if h[0] != b"content-length"] == [
            h for h in repeated.head.headers if h[0] != b"content-length"
        ]


@given(st.binary(max_size=2000))
def test_same_head_with_another_body_is_recognized(body: bytes):
    repeated = learn(HEAD + b"{}")
    assert repeated is not None
    assert repeated.body(HEAD.replace(b": 2\r", b": %d\r" % len(body)) + body) == body


@pytest.mark.parametrize(
    "second",
    [
        HEAD + b"{",  # the rest is yet to come
        HEAD + b"{}POST",  # another follows
        HEAD.replace(b": 2\r", b": 2, 2\r") + b"{}",
        HEAD.replace(b": 2\r", b": -2\r") + b"{}",
        HEAD.replace(b": 2\r", b": +2\r") + b"{}",
        HEAD.replace(b": 2\r", b": 2\n\r") + b"{}",
        HEAD.replace(b": 2\r", b": \xb2\r") + b"{}",
        HEAD.replace(b": 2\r", b": " + b"0" * 20 + b"2\r") + b"{}",
        HEAD.replace(b"Bearer k", b"Bearer l") + b"{}",
        HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n") + b"{}",
        HEAD[:-2] + b"Content-Length: 2\r\n\r\n{}",
    ],
)
def test_anything_else_goes_to_the_parser(second: bytes):
    repeated = learn(HEAD + b"{}")
    assert repeated is not None
    assert repeated.body(second) is None


@pytest.mark.parametrize(
    "first",
    [
        HEAD.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
        HEAD.replace(b"Host: a", b"Connection: close") + b"{}",
        HEAD.replace(b"Host: a", b"X: " + b"y" * 5000) + b"{}",
        HEAD.replace(b"Content-Length: 2\r\n", b""),
    ],
)
def test_head_that_is_not_remembered(first: bytes):
    assert learn(first) is None
