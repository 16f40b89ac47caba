"""Sends spans to an OpenTelemetry collector, by the SDK's exporter in a thread of its own.

Nothing waits for the collector: spans wait in a queue, and those that find it full are dropped and counted.
The SDK's tracer is not used: it would make each span while its request runs. This module is only imported if
FLORIN_TRACES_TO is set.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gateway.observability.request_context import SpanIds
from gateway.observability.tracing import Span

log = logging.getLogger(__name__)

QUEUE: Final = 8_192
"""Spans that may wait for the collector: about 8 MiB."""
BATCH: Final = 512
BATCH_SECONDS: Final = 1.0
"""A batch is sent when it is full or this old."""
SEND_SECONDS: Final = 10.0
"""Seconds that sending one batch may take, retries included."""
CLOSE_SECONDS: Final = 2.0
"""Seconds to send what is left when the worker stops."""

_KINDS: Final = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_UNSET, _FAILED = Status(StatusCode.UNSET), Status(StatusCode.ERROR)
_SCOPE: Final = InstrumentationScope("florin")

Count = Callable[[str, int], None]
"""Counts spans by result: `exported`, `failed` (the collector did not take them), `dropped`."""


class SpanExport:
    """Use `put` from one thread. `resource`: attributes of this process; OTEL_RESOURCE_ATTRIBUTES and
    OTEL_SERVICE_NAME come before them, and OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE, _CLIENT_CERTIFICATE and
    _CLIENT_KEY apply to the connection."""

    def __init__(self, endpoint: str, resource: Mapping[str, str], count: Count) -> None:
        self._count = count
        self._resource = Resource(resource).merge(OTELResourceDetector().detect())
        self._exporter = OTLPSpanExporter(endpoint, timeout=SEND_SECONDS, compression=Compression.Gzip)
        self._sender = _Sender(self._exporter, endpoint, count)
        self._processor = BatchSpanProcessor(
            self._sender,
            max_queue_size=QUEUE,
            schedule_delay_millis=BATCH_SECONDS * 1000,
            max_export_batch_size=BATCH,
        )
        self._accepted = 0

    def put(self, span: Span) -> None:
        """Queue a span, or drop it."""
        if self._accepted - self._sender.taken >= QUEUE:  # the SDK's queue would drop without a count
            self._count("dropped", 1)
            return
        self._accepted += 1
        self._processor.on_end(self._readable(span))

    def close(self) -> None:
        """Send what is left, for CLOSE_SECONDS at most. Blocks."""
        left = threading.Thread(target=self._processor.force_flush, name="last spans", daemon=True)
        left.start()
        left.join(CLOSE_SECONDS)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends its retries
        threading.Thread(target=self._processor.shutdown, name="end of spans", daemon=True).start()

    def _readable(self, span: Span) -> ReadableSpan:
        parent, link = span.parent, span.link
        return ReadableSpan(
            span.name,
            context=_context(span.ids),
            parent=None if parent is None else _context(parent, remote=span.remote),
            resource=self._resource,
            attributes=span.attributes,
            links=() if link is None else (Link(_context(link, remote=True)),),
            kind=_KINDS[span.kind],
            status=_FAILED if span.failed else _UNSET,
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=_SCOPE,
        )


class _Sender(SpanExporter):
    """Counts what the exporter sends, and logs when it begins to fail and when it works again. In the
    processor's thread."""

    def __init__(self, exporter: SpanExporter, endpoint: str, count: Count) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._count = count
        self._failing = False
        self._reason = _LastWords()
        self.taken = 0
        """Spans that have left the queue."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        self._count("failed" if failed else "exported", len(spans))
        if failed and not self._failing:
            log.warning(
                "Spans cannot be sent to %s; requests are not affected. %s", self._endpoint, self._reason.text
            )
        elif self._failing and not failed:
            log.info("Spans can be sent to %s again", self._endpoint)
        self._failing = failed
        return result


class _LastWords(logging.Handler):
    """Keeps the exporter's last message out of the log: a collector that is away would have one every few
    seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def _context(ids: SpanIds, *, remote: bool = False) -> SpanContext:
    return SpanContext(ids.trace, ids.span, is_remote=remote, trace_flags=TraceFlags(ids.sampled))
