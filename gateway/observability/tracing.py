"""Traces: a span for each request, each attempt at an engine, and each adapter load.

While a request runs, its spans only have ids, which the engine and the log need. Everything else is known
when a span ends, so that it is made then, and only if the trace is sampled. `span_export` sends spans to the
collector; this module needs nothing of OpenTelemetry.

Spans have names, ids, counts and times, never prompts or answers. Attributes are named as OpenTelemetry's
semantic conventions do (HTTP, GenAI), and Florin's own begin with `florin.`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, Protocol
from urllib.parse import urlsplit

from adapters.model import Engine, Version
from gateway.observability.request_context import CURRENT, RequestContext, SpanIds

Value = str | int | float | bool
Kind = Literal["server", "client", "internal"]

_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
}
"""gen_ai.operation.name; of other routes, the last part of the path."""
_SAMPLED_BITS: Final = 64
"""The lowest bits of a trace id, which the ratio is compared with."""
_SOUND: Final = frozenset({"ok", "resumed", "client_abort", "rejected"})
"""Outcomes of attempts that are no failures of Florin or an engine."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended."""

    name: str
    kind: Kind
    ids: SpanIds
    parent: SpanIds | None
    start: int
    """Unix nanoseconds, like `end`."""
    end: int
    attributes: Mapping[str, Value]
    failed: bool = False
    remote: bool = False
    """The parent is another process's."""
    link: SpanIds | None = None
    """A span of another trace that led to this one."""


class Ended(Protocol):
    """An attempt that has ended (metering's AttemptMeter)."""

    first: int
    """Monotonic nanoseconds, like `start` and `ended`; 0: there was no first token."""
    ended: int

    @property
    def start(self) -> int: ...

    @property
    def outcome(self) -> str | None: ...

    @property
    def billed(self) -> tuple[int, int, int]: ...


@dataclass(slots=True)
class Tracing:
    """Makes one worker's spans. On the worker's event loop only."""

    export: Callable[[Span], None]
    """Takes a span that has ended. Never waits."""
    ratio: float = 1.0
    trust_clients: bool = False
    """Whether to continue the clients' traces."""
    _random: random.Random = field(default_factory=random.Random)

    def begin(self, context: RequestContext, *, route: str, batch: bool) -> None:
        """Begin the span of a request. Its ids replace the client's in `context`."""
        sent = context.trace.get("traceparent")
        client = SpanIds.of(sent) if sent else None
        parent = client if self.trust_clients else None
        ids = self.ids(parent)
        if parent is None:
            context.trace = {}
        context.trace["traceparent"] = ids.traceparent()
        context.spans = RequestSpans(self, context, ids, parent, client, route, batch)

    def loaded(self, engine: Engine, version: Version, result: str, seconds: float) -> None:
        """An adapter load has ended. Its span belongs to the request that began it, whichever others waited
        for it, too; a load that no request began is a trace of its own."""
        context = CURRENT.get()
        parent = context.spans.ids if context is not None and context.spans is not None else None
        ids, end = self.ids(parent), time.time_ns()
        if not ids.sampled:
            return
        attributes: dict[str, Value] = {
            "florin.adapter": version.id,
            "florin.tenant": version.tenant,
            "florin.load.result": result,
            **_of_engine(engine),
        }
        if result != "ok":
            attributes["error.type"] = result
        self.export(
            Span(
                f"load {version.id}",
                "internal",
                ids,
                parent,
                start=end - int(seconds * 1e9),
                end=end,
                attributes=attributes,
                failed=result != "ok",
            )
        )

    def ids(self, parent: SpanIds | None) -> SpanIds:
        """Ids of a new span; without a parent, of a new trace."""
        span = self._random.getrandbits(64) or 1  # zero is no id
        if parent is not None:
            return SpanIds(parent.trace, span, parent.sampled)
        trace = self._random.getrandbits(128) or 1
        low = trace % (1 << _SAMPLED_BITS)  # as the SDKs do, so that all services decide alike about a trace
        return SpanIds(trace, span, low < round(self.ratio * (1 << _SAMPLED_BITS)))


@dataclass(slots=True)
class RequestSpans:
    """The spans of one request. The lifecycle calls `attempt` before each attempt, `attempt_ended` after it,
    and `ended` at the end of the request."""

    tracing: Tracing
    context: RequestContext
    ids: SpanIds
    """The ids of the request's span."""
    parent: SpanIds | None
    client: SpanIds | None
    """The client's span, which is the parent only if clients are trusted."""
    route: str
    batch: bool
    _attempt: SpanIds | None = None
    _waited: float = 0.0
    """Seconds that it had waited for turns when the last attempt ended."""
    _began: int = field(default_factory=time.monotonic_ns)
    _offset: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())
    """From monotonic to Unix nanoseconds."""

    def attempt(self) -> dict[str, str]:
        """Begin the span of an attempt. Returns the trace headers for the engine."""
        ids = self._attempt = self.tracing.ids(self.ids)
        return self.context.trace | {"traceparent": ids.traceparent()}

    def attempt_ended(
        self, engine: Engine, record: Ended, *, waited: float, error: BaseException | None
    ) -> None:
        """`waited`: seconds that the request has waited for its turns so far. `error`: why it failed."""
        ids, self._attempt = self._attempt, None
        waited, self._waited = waited - self._waited, waited
        if ids is None or not ids.sampled:
            return
        context, operation = self.context, operation_of(self.route)
        prompt, cached, completion = record.billed
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": engine.driver,
            "gen_ai.request.model": context.model,
            "gen_ai.request.stream": context.stream,
            "gen_ai.response.model": context.adapter,
            "florin.attempt": context.attempts,
            "florin.outcome": str(record.outcome),
            "florin.queue.wait_seconds": waited,
            **self._whose(),
            **_of_engine(engine),
        }
        if prompt or completion:
            attributes["gen_ai.usage.input_tokens"] = prompt
            attributes["gen_ai.usage.cache_read.input_tokens"] = cached
            attributes["gen_ai.usage.output_tokens"] = completion
        if record.first:
            attributes["gen_ai.response.time_to_first_chunk"] = (record.first - record.start) / 1e9
        if error is not None:
            attributes["error.type"] = _reason(error)
        self.tracing.export(
            Span(
                f"{operation} {context.model}",
                "client",
                ids,
                self.ids,
                start=record.start + self._offset,
                end=record.ended + self._offset,
                attributes=attributes,
                failed=record.outcome not in _SOUND,
            )
        )

    def ended(self) -> None:
        """The request has ended: its status and error are known."""
        if not self.ids.sampled:
            return
        context = self.context
        attributes: dict[str, Value] = {
            "http.request.method": "POST",
            "http.route": self.route,
            "gen_ai.operation.name": operation_of(self.route),
            "florin.request_id": context.request_id,
            "florin.attempts": context.attempts,
            "florin.batch": self.batch,
            **self._whose(),
        }
        optional: dict[str, Value] = {
            "http.response.status_code": context.status,
            "error.type": context.error,
            "gen_ai.request.model": context.model,
            "gen_ai.response.model": context.adapter,
            "florin.client_request_id": context.client_request_id,
            "florin.engine": context.engine,
        }
        attributes.update((name, value) for name, value in optional.items() if value)
        if context.attempt is not None:
            attributes["florin.outcome"] = str(context.attempt.outcome)
        self.tracing.export(
            Span(
                f"POST {self.route}",
                "server",
                self.ids,
                self.parent,
                start=self._began + self._offset,
                end=time.monotonic_ns() + self._offset,
                attributes=attributes,
                failed=context.status >= 500 or (context.status == 200 and bool(context.error)),
                remote=self.parent is not None,
                link=self.client if self.parent is None else None,
            )
        )

    def _whose(self) -> dict[str, Value]:
        """What is known of the caller and the adapter: nothing, if the key is not valid."""
        context = self.context
        whose = {
            "florin.tenant": context.tenant,
            "florin.key": context.key_id,
            "florin.adapter": context.adapter,
        }
        return {name: value for name, value in whose.items() if value}


def operation_of(route: str) -> str:
    """gen_ai.operation.name."""
    return _OPERATIONS.get(route) or route.rpartition("/")[2]


def _of_engine(engine: Engine) -> Mapping[str, Value]:
    host, port = _address(engine.url)
    return {
        "florin.engine": engine.name,
        "florin.gpu_type": engine.gpu_type,
        "server.address": host,
        "server.port": port,
    }


@lru_cache(maxsize=4096)
def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _reason(error: BaseException) -> str:
    """A short word: of a retry its reason, of an error its code."""
    for name in ("reason", "code"):
        word = getattr(error, name, "")
        if word and isinstance(word, str):
            return word
    return type(error).__qualname__
