"""The context of the request that a task serves, for the log only.

The data plane creates one per request and the lifecycle fills it in. All events that are logged meanwhile
carry its ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

if TYPE_CHECKING:  # commands log, too, and need not wait for the registry's documents
    from adapters.model import Engine

CLIENT_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
"""Valid request ids of clients. Others are ignored, because ids go into logs and headers."""
_CLIENT_IDS = frozenset({b"x-request-id", b"x-client-request-id"})
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
"""W3C Trace Context: version, trace id, parent id, flags; later versions may append fields."""
_KEY = rb"[a-z0-9][a-z0-9_*/@-]{0,255}"
_MEMBER = (
    rb"[ \t]*(?:" + _KEY + rb"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e][ \t]*)?"
)
_TRACESTATE = re.compile(_MEMBER + rb"(?:," + _MEMBER + rb"){0,31}")
_LONGEST_STATE = 512
_TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})
READ_HEADERS = _CLIENT_IDS | _TRACE_HEADERS
"""What `RequestContext.read` looks for."""


class Counted(Protocol):
    """The latest attempt (metering's AttemptMeter)."""

    @property
    def start(self) -> int: ...

    @property
    def first(self) -> int: ...

    @property
    def tokens(self) -> tuple[int, int | None, int]: ...

    @property
    def outcome(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class SpanIds:
    """The content of a `traceparent` header."""

    trace: int
    span: int
    sampled: bool

    def traceparent(self) -> str:
        return f"00-{self.trace:032x}-{self.span:016x}-{'01' if self.sampled else '00'}"

    @classmethod
    def of(cls, traceparent: str) -> Self:
        """`traceparent`: a valid one."""
        _, trace, span, flags = traceparent.split("-")
        return cls(int(trace, 16), int(span, 16), sampled=bool(int(flags, 16) & 1))


class Spans(Protocol):
    """The request's spans (`tracing.RequestSpans`)."""

    ids: SpanIds

    def attempt(self) -> dict[str, str]: ...

    def attempt_ended(
        self, engine: Engine, record: Any, *, waited: float, error: BaseException | None
    ) -> None: ...

    def ended(self) -> None: ...


@dataclass(slots=True)
class RequestContext:
    """Mutable; one for each request on the data plane."""

    request_id: str
    """Florin's id."""
    client_request_id: str = ""
    """The client's id, if it sent a valid one."""
    trace: dict[str, str] = field(default_factory=dict)
    """`traceparent` and `tracestate` of the client or, if spans are made, of the request's span."""
    spans: Spans | None = None
    """None: no spans are made."""
    tenant: str = ""
    key_id: str = ""
    adapter: str = ""
    """`acme/support@v3`, or the base model's name."""
    model: str = ""
    """What the client called it."""
    engine: str = ""
    attempts: int = 0
    stream: bool = False
    status: int = 0
    """HTTP status; 0: the answer has not begun."""
    error: str = ""
    """Error code."""
    cors: Sequence[tuple[bytes, bytes]] = ()
    """Response headers for a request of another origin's page."""
    attempt: Counted | None = None
    began: float = field(default_factory=monotonic)

    @property
    def trace_id(self) -> str:
        parent = self.trace.get("traceparent")
        return parent.split("-")[1] if parent else ""

    @property
    def span_id(self) -> str:
        """The id of the request's span or, if no spans are made, of the client's."""
        parent = self.trace.get("traceparent")
        return parent.split("-")[2] if parent else ""

    def ids(self) -> list[tuple[bytes, bytes]]:
        """Response headers: Florin's id, which usage records have too, and the client's."""
        ids = [(b"x-request-id", self.request_id.encode()), *self.cors]
        if self.client_request_id:
            ids.append((b"x-client-request-id", self.client_request_id.encode()))
        return ids

    def read(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Read ids and trace context from the client's headers. Malformed ones are ignored."""
        relevant = [(name, value) for name, value in headers if name in READ_HEADERS]
        if not relevant:
            return
        for name, value in relevant:
            if name in _CLIENT_IDS and CLIENT_ID.fullmatch(value):
                self.client_request_id = value.decode()
                break
        parents = [value.strip() for name, value in relevant if name == b"traceparent"]
        parent = traceparent(parents[0]) if len(parents) == 1 else ""
        if parent:
            self.trace["traceparent"] = parent
            state = b",".join(value for name, value in relevant if name == b"tracestate").strip()
            if state and len(state) <= _LONGEST_STATE and _TRACESTATE.fullmatch(state):
                self.trace["tracestate"] = state.decode()


def traceparent(value: bytes) -> str:
    """The header to pass on, reduced to version 00; empty if it is malformed."""
    match = _TRACEPARENT.fullmatch(value)
    if match is None:
        return ""
    version, trace, parent, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more) or not (trace.strip(b"0") and parent.strip(b"0")):
        return ""
    return f"00-{trace.decode()}-{parent.decode()}-{flags.decode()}"


CURRENT: ContextVar[RequestContext | None] = ContextVar("florin_request", default=None)
"""Set for the current task and for tasks that it starts."""
