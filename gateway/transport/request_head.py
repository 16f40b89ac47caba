"""The head of an HTTP/1.1 request, and how its connection recognizes the same one again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.transport.repeated_bytes import RepeatedBytes, repeated_bytes

Headers = list[tuple[bytes, bytes]]


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
    first_headers: Mapping[bytes, bytes] = field(init=False)
    """The first header of each name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "first_headers", dict(reversed(self.headers)))


class RepeatedHead:
    """A head of which only the length of the body may change."""

    __slots__ = ("_repeated", "body", "head")

    def __init__(self, head: RequestHead, repeated: RepeatedBytes) -> None:
        self.head = head
        self.body = repeated.body


def repeatable(data: bytes, head: RequestHead) -> RepeatedHead | None:
    """The head of the complete request `data`, as llhttp parsed it; None: parse each of its kind."""
    if not head.keep_alive or head.expects_continue or head.version != "1.1":
        return None
    if sum(name in _FRAMING for name, _ in head.headers) != 1:
        return None
    repeated = repeated_bytes(data)
    return None if repeated is None else RepeatedHead(head, repeated)


_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"upgrade"})
