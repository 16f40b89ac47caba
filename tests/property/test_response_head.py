"""A response whose head is recognized is what the parser would have read."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.engine_connection import LESSONS, EngineConnection

NAMES = ["Content-Length", "content-length", "Transfer-Encoding", "Connection", "Date", "X-Content-Length"]
VALUES = ["2", "02", " 2", "2 ", "content-length: 3", "chunked", "keep-alive", "close", "", "Upgrade"]
HEAD = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\n"
headers = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=5)

Reading = tuple[int, bool, bool, bytes, bool]


class Wire(asyncio.Transport):
    """To an engine whose responses the test plays."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


def response(status: str, lines: list[tuple[str, str]], body: bytes) -> bytes:
    text = "".join(f"{name}:{value}\r\n" for name, value in lines)
    return f"HTTP/1.1 {status}\r\n{text}\r\n".encode() + body


def read_all(*responses: bytes, recognizes: bool) -> list[Reading]:
    """What one connection reads, up to the first response after which it cannot be used again."""

    async def run() -> list[Reading]:
        connection = EngineConnection()
        connection._lessons = LESSONS if recognizes else 0
        connection.connection_made(Wire())
        readings = []
        for data in responses:
            sending = asyncio.ensure_future(connection.send(b"", b""))
            await asyncio.sleep(0)
            connection.data_received(data)
            body = b"".join(connection._buffer)
            connection._buffer.clear()
            readings.append(
                (connection.status, connection.complete, connection.reusable, body, connection._error is None)
            )
            sending.cancel()
            await asyncio.wait([sending])
            if not connection.reusable:
                break
        return readings

    return cast("list[Reading]", asyncio.run(run()))


@given(
    st.sampled_from(["200 OK", "200 ", "404 Not Found", "204 No Content"]),
    headers,
    st.sampled_from([b"", b"{}", b"{}{}", b"\r\n"]),
    st.data(),
)
def test_recognized_response_is_what_llhttp_reads(
    status: str, lines: list[tuple[str, str]], body: bytes, data: st.DataObject
):
    first = response(status, lines, body)
    cut = data.draw(st.integers(0, len(first)))
    end = data.draw(st.integers(cut, len(first)))
    middle = data.draw(st.sampled_from([b"", b"0", b"3", b"12", b"\r\n", b" ", b"{}", HEAD]))
    second = first[:cut] + middle + first[end:]
    assert read_all(first, second, first, recognizes=True) == read_all(first, second, first, recognizes=False)


@given(st.binary(max_size=2000))
def test_same_head_with_another_body_is_recognized(body: bytes):
    other = HEAD.replace(b": 2\r", b": %d\r" % len(body)) + body
    [_, reading] = read_all(HEAD + b"{}", other, recognizes=True)
    assert reading == (200, True, True, body, True)


@pytest.mark.parametrize("known", [True, False])
def test_engine_that_never_repeats_a_head_is_parsed(known: bool):
    """After a few tries, nothing is remembered any more; before, the next is recognized."""

    async def run() -> None:
        connection = EngineConnection()
        connection.connection_made(Wire())
        for number in range(LESSONS if known else LESSONS + 1):
            last = HEAD.replace(b"today", b"%d" % number) + b"{}"
            connection._begin()
            connection.data_received(last)
        connection._begin()
        assert connection._recognized(last) is known

    asyncio.run(run())
