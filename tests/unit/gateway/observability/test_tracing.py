"""Which traces are exported, what spans say, and what they cost a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from adapters.model import Engine
from gateway.observability.request_context import CURRENT, RequestContext, SpanIds
from gateway.observability.tracing import Span, Tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
SENT = f"00-{TRACE}-b7ad6b7169203331"
ENGINE = Engine("e", "https://gpu7.internal/v1", "base", "h100", slots=2, max_rank=8)


@dataclass
class Attempt:
    start: int = 1_000
    first: int = 0
    ended: int = 2_000
    outcome: str | None = "ok"
    billed: tuple[int, int, int] = (0, 0, 0)


class RetriedError(Exception):
    reason = "hung"


def begun(tracing: Tracing, parent: str = "", state: str = "", *, batch: bool = False) -> RequestContext:
    context = RequestContext("req-1")
    context.trace = {k: v for k, v in {"traceparent": parent, "tracestate": state}.items() if v}
    tracing.begin(context, route="/v1/chat/completions", batch=batch)
    return context


@pytest.mark.parametrize(("ratio", "least", "most"), [(0, 0, 0), (1, 2000, 2000), (0.25, 400, 600)])
def test_the_ratio_decides_by_trace(ratio: float, least: int, most: int):
    tracing = Tracing(lambda _: None, ratio)
    found = [tracing.ids(None) for _ in range(2000)]
    assert least <= sum(ids.sampled for ids in found) <= most
    assert len({ids.trace for ids in found}) == len({ids.span for ids in found}) == 2000
    assert all(tracing.ids(ids).sampled is ids.sampled for ids in found)


@pytest.mark.parametrize("flags", ["00", "01"])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_trusted_client_decides(flags: str, ratio: float):
    spans: list[Span] = []
    context = begun(Tracing(spans.append, ratio, trust_clients=True), f"{SENT}-{flags}", "rojo=1")
    assert context.spans is not None
    sent = context.spans.attempt()
    assert sent["traceparent"].split("-")[1::2] == [TRACE, flags]
    assert sent["tracestate"] == "rojo=1"
    assert sent["traceparent"] != context.trace["traceparent"]  # the log has the request's span
    context.spans.ended()
    assert [span.ids.sampled for span in spans] == ([True] if flags == "01" else [])


def test_an_untrusted_client_decides_nothing():
    spans: list[Span] = []
    context = begun(Tracing(spans.append, 1.0), f"{SENT}-00", "rojo=1")
    assert context.spans is not None
    sent = context.spans.attempt()
    assert sent.keys() == {"traceparent"}
    assert TRACE not in sent["traceparent"] + context.trace_id
    context.spans.ended()
    assert (spans[0].parent, spans[0].link) == (None, SpanIds.of(f"{SENT}-00"))


def test_each_attempt_has_its_own_wait_reason_and_outcome():
    spans: list[Span] = []
    context = begun(Tracing(spans.append))
    assert context.spans is not None
    context.model, context.adapter = "support", "acme/support@v1"
    for waited, record, error in (
        (0.5, Attempt(outcome="failover"), RetriedError()),
        (0.75, Attempt(outcome="client_abort"), KeyError("the-secret")),
    ):
        context.spans.attempt()
        context.attempts += 1
        context.spans.attempt_ended(ENGINE, record, waited=waited, error=error)
    said = [span.attributes for span in spans]
    assert [each["florin.queue.wait_seconds"] for each in said] == [0.5, 0.25]
    assert [each["error.type"] for each in said] == ["hung", "KeyError"]
    assert [span.failed for span in spans] == [True, False]
    assert [(each["server.address"], each["server.port"]) for each in said] == [("gpu7.internal", 443)] * 2
    assert {span.name for span in spans} == {"chat support"}
    assert "the-secret" not in str(spans)


@pytest.mark.parametrize(
    ("status", "error", "failed"),
    [
        (200, "", False),
        (200, "stream_interrupted", True),
        (404, "model_not_found", False),
        (503, "overloaded", True),
        (0, "", False),
    ],
)
def test_a_request_failed_if_it_was_not_the_clients_fault(status: int, error: str, failed: bool):
    spans: list[Span] = []
    context = begun(Tracing(spans.append))
    context.status, context.error = status, error
    assert context.spans is not None
    context.spans.ended()
    assert spans[0].failed is failed
    assert spans[0].attributes.get("error.type", "") == error


def test_a_load_that_no_request_began_is_a_trace_of_its_own():
    spans: list[Span] = []
    tracing = Tracing(spans.append)
    version: Any = type("Version", (), {"id": "acme/support@v1", "tenant": "acme"})
    tracing.loaded(ENGINE, version, "ok", 0.5)
    token = CURRENT.set(context := begun(tracing))
    try:
        tracing.loaded(ENGINE, version, "refused", 0.5)
    finally:
        CURRENT.reset(token)
    assert context.spans is not None
    assert [span.parent for span in spans] == [None, context.spans.ids]
    assert [span.end - span.start for span in spans] == [500_000_000] * 2
    assert [span.failed for span in spans] == [False, True]
