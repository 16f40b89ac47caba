"""How a connection recognizes a head that it has parsed before.

A client's requests on one connection usually differ in their bodies and `Content-Length` only, and so do an
engine's responses. So a head that llhttp has parsed once need not be parsed again: `RepeatedBytes` compares
bytes and reads one number. Whatever it does not recognize goes to the parser.
"""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 4096
"""Bytes of a head that is remembered, which bounds the memory of a connection."""
_LONGEST_NUMBER: Final = 15
_LENGTH: Final = b"\r\ncontent-length:"


class RepeatedBytes:
    """The bytes of a head, around the digits of its content length."""

    __slots__ = ("_after", "_before", "_start")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._start = len(before)
        self._after = after

    def body(self, data: bytes) -> bytes | None:
        """The body, if `data` is one complete message with this head; otherwise None."""
        if not data.startswith(self._before):
            return None
        start = self._start
        end = data.find(b"\r", start, start + _LONGEST_NUMBER)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return None
        body = data[end + len(self._after) :]
        return body if len(body) == int(digits) else None


def repeated_bytes(data: bytes) -> RepeatedBytes | None:
    """The head of the complete message `data`, which llhttp has accepted; None: parse each of its kind. Its
    caller makes sure that nothing but `Content-Length` frames the body."""
    end = data.find(b"\r\n\r\n", 0, _LONGEST)
    names = data[: max(end, 0)].lower()
    if names.count(_LENGTH) != 1:
        return None
    name_end = names.find(_LENGTH) + len(_LENGTH)
    digits = data[name_end : data.find(b"\r\n", name_end)].strip(b" \t")
    start = data.find(digits, name_end)
    after = data[start + len(digits) : end + 4]
    if not digits.isdigit() or not after.startswith(b"\r\n"):
        return None
    repeated = RepeatedBytes(data[:start], after)
    return None if repeated.body(data) is None else repeated
