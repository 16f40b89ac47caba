"""Spans: what a collector gets, what an engine gets, and what happens without a collector."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from loadtests.mock_engine import MockEngine
from tests.integration.test_data_plane import HELLO
from tests.integration.test_observability import value
from tests.support.harness import Gateway, fake_adapter, running_gateway

TRACE, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "the-secret-of-the-prompt"


@dataclass
class Collector:
    """An OpenTelemetry collector's OTLP/HTTP receiver."""

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
            collector.bodies.append(gzip.decompress(body))
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


@asynccontextmanager
async def serving(
    tmp_path: Path, valkey_url: str, prefix: str, engines: list[MockEngine], **settings: Any
) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway:
        for number, engine in enumerate(engines):
            await gateway.add_engine(f"e{number}", engine.url)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        yield gateway


async def test_a_cold_request_is_one_trace_from_the_client_to_the_engine(
    tmp_path: Path, valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=collector-key")
    with collecting() as collector:
        async with (
            MockEngine() as engine,
            serving(
                tmp_path, valkey_url, prefix, [engine], traces_to=collector.url, trace_clients=True
            ) as gateway,
            gateway.client("acme") as client,
        ):
            sent = {
                "traceparent": f"00-{TRACE}-{PARENT_ID}-01",
                "tracestate": "rojo=1",
                "x-request-id": "job-7",
            }
            messages: Any = [{"role": "user", "content": SECRET}]
            chunks = await client.chat.completions.create(
                model="support", messages=messages, stream=True, extra_headers=sent
            )
            assert [chunk async for chunk in chunks]
            await client.chat.completions.create(model="acme/support", messages=HELLO, extra_headers=sent)
            [record, _] = await gateway.usage("acme")
            [cold, warm] = sorted(engine.state.calls, key=lambda call: call.began)
    first, second = collector.named("POST /v1/chat/completions")
    [load] = collector.named("load acme/support@v1")
    [attempt] = collector.named("chat support")
    [again] = collector.named("chat acme/support")
    assert len(collector.spans) == 5
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert first.parent_span_id.hex() == second.parent_span_id.hex() == PARENT_ID
    assert load.parent_span_id == attempt.parent_span_id == first.span_id
    assert again.parent_span_id == second.span_id
    assert cold.headers["traceparent"] == f"00-{TRACE}-{attempt.span_id.hex()}-01"
    assert warm.headers["traceparent"] == f"00-{TRACE}-{again.span_id.hex()}-01"
    assert cold.headers["tracestate"] == "rojo=1"
    assert len({span.span_id for span in collector.spans}) == 5
    assert (
        first.start_time_unix_nano
        <= load.start_time_unix_nano
        < load.end_time_unix_nano
        <= attempt.start_time_unix_nano
        < attempt.end_time_unix_nano
        <= first.end_time_unix_nano
    )
    assert abs(first.end_time_unix_nano / 1e9 - time.time()) < 60

    said = attributes(attempt)
    port = int(engine.url.rpartition(":")[2])
    assert said["gen_ai.response.time_to_first_chunk"] > 0
    assert said | {"gen_ai.response.time_to_first_chunk": 0} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "support",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "acme/support@v1",
        "gen_ai.response.time_to_first_chunk": 0,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens or 0,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "florin.adapter": "acme/support@v1",
        "florin.attempt": 1,
        "florin.engine": "e0",
        "florin.gpu_type": "h100",
        "florin.key": record.key_id,
        "florin.outcome": "ok",
        "florin.queue.wait_seconds": 0.0,
        "florin.tenant": "acme",
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    said = attributes(first)
    assert said["http.response.status_code"] == 200
    assert said["florin.client_request_id"] == "job-7"
    assert said["florin.request_id"] == record.request_id
    assert not any(name.startswith("gen_ai.usage") for name in said)  # who adds up spans counts none twice
    assert attributes(load)["florin.load.result"] == "ok"
    assert collector.resource["service.name"] == "florin"
    assert collector.headers[0]["x-api-key"] == "collector-key"
    assert SECRET not in str(collector.spans)


async def test_a_failover_shows_each_attempt_and_untrusted_clients_are_only_linked(
    tmp_path: Path, valkey_url: str, prefix: str
):
    with collecting() as collector:
        async with (
            MockEngine() as bad,
            MockEngine() as good,
            serving(tmp_path, valkey_url, prefix, [bad, good], traces_to=collector.url) as gateway,
            gateway.client("acme") as client,
        ):
            await client.chat.completions.create(model="support", messages=HELLO)
            [holder] = [engine for engine in (bad, good) if engine.state.calls]
            holder.faults.update({"status": 500})
            sent = {"traceparent": f"00-{TRACE}-{PARENT_ID}-00", "tracestate": "rojo=1"}
            await client.chat.completions.create(model="support", messages=HELLO, extra_headers=sent)
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model=SECRET, messages=HELLO)
    _, request, unknown = collector.named("POST /v1/chat/completions")
    attempts = [s for s in collector.named("chat support") if s.trace_id == request.trace_id]
    assert request.trace_id.hex() != TRACE
    assert not request.parent_span_id
    [link] = request.links
    assert (link.trace_id.hex(), link.span_id.hex()) == (TRACE, PARENT_ID)
    assert [attributes(a)["florin.outcome"] for a in attempts][-1] == "ok"
    assert len(attempts) > 1
    assert attributes(attempts[0])["error.type"] == "status_5xx"
    assert [a.status.code for a in attempts] == [2] * (len(attempts) - 1) + [0]
    assert "gen_ai.usage.output_tokens" not in attributes(attempts[0])
    headers = [call.headers for engine in (bad, good) for call in engine.state.calls]
    ours = [each for each in headers if request.trace_id.hex() in each["traceparent"]]
    assert {each["traceparent"].split("-")[2] for each in ours} == {a.span_id.hex() for a in attempts}
    assert not any("tracestate" in each for each in headers)
    said = attributes(unknown)
    assert (said["http.response.status_code"], said["error.type"]) == (404, "model_not_found")
    assert unknown.status.code == 0
    assert SECRET not in str(collector.spans)


async def test_without_sampling_the_engine_hears_so_and_nothing_is_exported(
    tmp_path: Path, valkey_url: str, prefix: str
):
    with collecting() as collector:
        async with (
            MockEngine() as engine,
            serving(
                tmp_path, valkey_url, prefix, [engine], traces_to=collector.url, trace_ratio=0.0
            ) as gateway,
            gateway.client("acme") as client,
        ):
            await client.chat.completions.create(model="support", messages=HELLO)
            [call] = engine.state.calls
    assert call.headers["traceparent"].endswith("-00")
    assert collector.bodies == []


@pytest.mark.parametrize("trouble", ["refuses", "hangs", "absent"])
async def test_a_collector_that_fails_delays_and_breaks_nothing(
    tmp_path: Path, valkey_url: str, prefix: str, trouble: str, caplog: pytest.LogCaptureFixture
):
    with collecting(status=400) as collector, socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}" if trouble == "hangs" else collector.url
        where = "http://127.0.0.1:1" if trouble == "absent" else where
        async with (
            MockEngine() as engine,
            serving(tmp_path, valkey_url, prefix, [engine], traces_to=where) as gateway,
            gateway.client("acme") as client,
        ):
            for _ in range(3):
                await client.chat.completions.create(model="support", messages=HELLO)
            if trouble == "refuses":
                async with asyncio.timeout(10), gateway.http() as http:
                    while not value(
                        (await http.get("/metrics")).text, "florin_trace_spans_total", result="failed"
                    ):
                        await asyncio.sleep(0.05)
            began = time.monotonic()
        assert time.monotonic() - began < 8  # the collector's time limit is longer
    assert len(engine.state.calls) == 3
    assert caplog.text.count("Spans cannot be sent") <= 1


async def test_logs_carry_the_ids_of_the_requests_span(
    tmp_path: Path, valkey_url: str, prefix: str, caplog: pytest.LogCaptureFixture
):
    with collecting() as collector:
        async with (
            MockEngine() as engine,
            serving(
                tmp_path, valkey_url, prefix, [engine], traces_to=collector.url, access_log=True
            ) as gateway,
            gateway.client("acme") as client,
        ):
            await client.chat.completions.create(model="support", messages=HELLO)
    [span] = collector.named("POST /v1/chat/completions")
    [line] = [each for each in caplog.records if each.name == "florin.access"]
    logged = line.__dict__["fields"]
    assert (logged["trace_id"], logged["span_id"]) == (span.trace_id.hex(), span.span_id.hex())
    assert json.dumps(logged)
