"""The head of an HTTP/1.1 request, and how a connection recognises the same one again.

A client's requests on one connection usually differ in their bodies and `Content-Length` only, so a head that
llhttp has parsed once need not be parsed again. `RepeatedHead` compares bytes and reads one number. Whatever
it does not recognise goes to the parser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Headers = list[tuple[bytes, bytes]]

_LONGEST: Final = 4096
"""Bytes of a head that is remembered, which bounds the memory of a connection."""
_LONGEST_NUMBER: Final = 15
_LENGTH: Final = b"\r\ncontent-length:"


@dataclass(frozen=True, slots=True)
class RequestHead:
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: Headers
    """Names in lower case. Not to be changed: several requests may share them."""
    version: str
    """`1.0` or `1.1`."""
    keep_alive: bool
    expects_continue: bool


class RepeatedHead:
    """A head of which only the length of the body may change."""

    __slots__ = ("_after", "_before", "_start", "head")

    def __init__(self, head: RequestHead, before: bytes, after: bytes) -> None:
        """`before` and `after`: the head's bytes around the digits of its content length."""
        self.head = head
        self._before = before
        self._start = len(before)
        self._after = after

    def body(self, data: bytes) -> bytes | None:
        """The body, if `data` is one complete request with this head; otherwise None."""
        if not data.startswith(self._before):
            return None
        start = self._start
        end = data.find(b"\r", start, start + _LONGEST_NUMBER)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return None
        body = data[end + len(self._after) :]
        return body if len(body) == int(digits) else None


def repeatable(data: bytes, head: RequestHead) -> RepeatedHead | None:
    """The head of the complete request `data`, as llhttp parsed it; None: parse each of its kind."""
    end = data.find(b"\r\n\r\n", 0, _LONGEST)
    if end < 0 or not head.keep_alive or head.expects_continue or head.version != "1.1":
        return None
    lengths = [value for name, value in head.headers if name in _FRAMING]
    if len(lengths) != 1 or not lengths[0].isdigit():
        return None
    names = data[:end].lower()
    name_end = names.find(_LENGTH) + len(_LENGTH)
    start = data.find(lengths[0], name_end, end)
    if names.count(_LENGTH) != 1 or start < 0 or data[name_end:start].strip(b" \t"):
        return None
    after = data[start + len(lengths[0]) : end + 4]
    return RepeatedHead(head, data[:start], after) if after.startswith(b"\r\n") else None


_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"upgrade"})
