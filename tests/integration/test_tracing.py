"""Spans: what a collector gets, what an engine gets, and what happens without a collector."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.observability import span_export
from gateway.observability.logs import JsonLines
from loadtests.mock_engine import MockEngine
from tests.integration.test_data_plane import HELLO
from tests.integration.test_observability import value
from tests.support.collector import attributes, collecting
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("patient")

TRACE, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "the-secret-of-the-prompt"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are sent soon, and a collector that hangs is waited for longer than any busy machine needs to stop."""
    monkeypatch.setattr(span_export, "BATCH_SECONDS", 0.1)
    monkeypatch.setattr(span_export, "SEND_SECONDS", 100.0)


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
            await until(lambda: len(collector.spans) == 5)
    first, second = collector.named("POST /v1/chat/completions")
    [load] = collector.named("load acme/support@v1")
    [attempt] = collector.named("chat support")
    [again] = collector.named("chat acme/support")
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
            await until(lambda: len(collector.named("POST /v1/chat/completions")) == 3)
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


@pytest.mark.parametrize("trouble", ["refuses", "hangs"])
async def test_a_collector_that_fails_delays_and_breaks_nothing(
    tmp_path: Path, valkey_url: str, prefix: str, trouble: str, caplog: pytest.LogCaptureFixture
):
    with collecting(status=400) as collector, socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}" if trouble == "hangs" else collector.url
        async with (
            MockEngine() as engine,
            serving(tmp_path, valkey_url, prefix, [engine], traces_to=where) as gateway,
            gateway.client("acme") as client,
        ):
            for _ in range(3):
                await client.chat.completions.create(model="support", messages=HELLO)
            if trouble == "refuses":
                async with asyncio.timeout(PATIENCE_S), gateway.http() as http:
                    while not value(
                        (await http.get("/metrics")).text, "florin_trace_spans_total", result="failed"
                    ):
                        await asyncio.sleep(0.05)
            began = time.monotonic()
        assert time.monotonic() - began < span_export.SEND_SECONDS / 2  # it is not waited for
    assert len(engine.state.calls) == 3
    assert caplog.text.count("Spans cannot be sent") <= 1


async def test_every_log_line_of_a_request_carries_the_ids_of_its_span(
    tmp_path: Path, valkey_url: str, prefix: str, json_lines: list[dict[str, Any]]
):
    """The access line, and what happens meanwhile, as FLORIN_LOG_FORMAT=json writes it."""
    with collecting() as collector:
        async with (
            MockEngine() as engine,
            serving(
                tmp_path,
                valkey_url,
                prefix,
                [engine],
                traces_to=collector.url,
                access_log=True,
                resume_streams=False,
            ) as gateway,
            gateway.client("acme") as client,
        ):
            await client.chat.completions.create(model="support", messages=HELLO)
            await until(lambda: all(state.healthy for state in gateway.state.pool.states()))
            engine.faults.update({"stop_at": "events"})
            with pytest.raises(openai.APIError):
                async for _ in await client.chat.completions.create(
                    model="support", messages=HELLO, stream=True
                ):
                    pass
            await until(lambda: len(collector.named("POST /v1/chat/completions")) == 2)
    whole, cut = collector.named("POST /v1/chat/completions")
    [first, second] = [line for line in json_lines if line["logger"] == "florin.access"]
    [load] = [line for line in json_lines if " loaded in " in line["message"]]
    [trouble] = [line for line in json_lines if "stream interrupted" in line["message"]]
    for line, span in ((first, whole), (load, whole), (second, cut), (trouble, cut)):
        assert (line["trace_id"], line["span_id"]) == (span.trace_id.hex(), span.span_id.hex()), line
    [up] = [line for line in json_lines if line["message"] == "Engine e0 up"]
    assert "trace_id" not in up  # of no request


@pytest.fixture
def json_lines() -> Iterator[list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonLines().format(record)))

    handler, names = Lines(), ("gateway", "adapters", "florin")
    before = {name: logging.getLogger(name).level for name in names}
    logging.getLogger().addHandler(handler)
    for name in names:
        logging.getLogger(name).setLevel(logging.INFO)
    yield lines
    logging.getLogger().removeHandler(handler)
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)
