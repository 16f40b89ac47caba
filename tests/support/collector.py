"""An OpenTelemetry collector's OTLP/HTTP receiver, and what it has got."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    url: str
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        found = (ExportTraceServiceRequest.FromString(body) for body in self.bodies)
        return [
            span for each in found for r in each.resource_spans for s in r.scope_spans for span in s.spans
        ]

    @property
    def resource(self) -> dict[str, Any]:
        return attributes(ExportTraceServiceRequest.FromString(self.bodies[0]).resource_spans[0].resource)

    def named(self, name: str) -> list[Span]:
        return sorted((s for s in self.spans if s.name == name), key=lambda s: s.start_time_unix_nano)


def attributes(holder: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
        for each in holder.attributes
    }


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            zipped = self.headers.get("content-encoding") == "gzip"
            collector.bodies.append(gzip.decompress(body) if zipped else body)
            collector.headers.append({name.lower(): text for name, text in self.headers.items()})
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.daemon_threads = False
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield collector
        server.shutdown()
        thread.join()
