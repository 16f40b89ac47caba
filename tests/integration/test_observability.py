"""What an operator sees of a running installation: each request in a line, each latency by engine and adapter, and
alerts that the incidents themselves set off."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from loadtests.mock_engine.process import MockProcess
from tests.integration import test_cli
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO
from tests.integration.test_routing import ask, stream
from tests.support.alerting import fires, silent
from tests.support.engine_hosts import registered
from tests.support.waiting import until, until_now

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PROMPT = "the-secret-of-the-prompt"


async def scrape(deployment: Deployment) -> str:
    """When the log's thread has accounted for what has ended."""
    await deployment.gateway.usage()
    async with deployment.gateway.http() as http:
        return (await http.get("/metrics")).text


def value(text: str, name: str, **labels: str) -> float | None:
    """Of the one sample of that name that has these labels, and perhaps others."""
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1, found
    return found[0] if found else None


async def seen(deployment: Deployment, name: str, at_least: float = 1, **labels: str) -> str:
    """The scrape that shows it."""
    for _ in range(200):
        text = await scrape(deployment)
        found = value(text, name, **labels)
        if found is not None and found >= at_least:
            return text
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} {labels}: {value(text, name, **labels)}")


# -- ids and traces


async def test_a_clients_id_and_trace_go_along_and_nothing_else_does(deployment: Deployment):
    sent = {
        "x-request-id": "job-7",
        "traceparent": PARENT,
        "tracestate": "rojo=1",
        "x-data-parallel-rank": "3",
        "baggage": "a=b",
    }
    async with deployment.gateway.client("acme") as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="support", messages=HELLO, extra_headers=sent
        )
        streamed = await client.chat.completions.with_raw_response.create(
            model="support", messages=HELLO, stream=True, extra_headers={"x-client-request-id": "job-8"}
        )
        assert [chunk async for chunk in streamed.parse()]
    assert raw.headers["x-client-request-id"] == "job-7"
    assert raw.headers["x-request-id"].startswith("req-")
    assert streamed.headers["x-client-request-id"] == "job-8"
    first, second = sorted(deployment.calls(), key=lambda call: call.began)
    assert set(first.headers) - set(second.headers) == {"traceparent", "tracestate"}
    assert (first.headers["traceparent"], first.headers["tracestate"]) == (PARENT, "rojo=1")
    assert set(second.headers) == {"host", "content-type", "content-length", "x-request-id"}
    assert first.headers["x-request-id"] == raw.headers["x-request-id"] + "-1"
    records = await deployment.gateway.usage("acme")
    assert records[0].request_id == raw.headers["x-request-id"]  # the client's is never the bill's


async def test_invalid_client_ids_are_not_echoed(deployment: Deployment):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        answer = await http.post(
            "/v1/chat/completions",
            json={"model": "support", "messages": HELLO},
            headers={"x-request-id": 'a" level=error', "traceparent": PARENT.replace("0a", "0A")},
        )
    assert answer.status_code == 200
    assert "x-client-request-id" not in answer.headers
    assert "traceparent" not in deployment.calls()[0].headers


# -- metrics


async def test_latency_slots_and_holders_by_engine_and_adapter(deployment: Deployment):
    await ask(deployment, "acme")
    await stream(deployment, "acme")
    await stream(deployment, "bolt")
    text = await seen(deployment, "florin_adapter_request_duration_seconds_count", adapter="bolt/support")
    [holder] = deployment.gateway.state.residency.holders(
        deployment.gateway.state.catalog.versions["acme/support@v1"].engine_name
    )
    assert value(text, "florin_adapter_request_duration_seconds_count", adapter="acme/support") == 2
    assert value(text, "florin_adapter_time_to_first_token_seconds_count", adapter="acme/support") == 1
    assert (value(text, "florin_request_duration_seconds_count", engine=holder) or 0) >= 2
    assert (value(text, "florin_time_to_first_token_seconds_count", engine=holder) or 0) >= 1
    assert value(text, "florin_adapter_holders", adapter="acme/support") == 1
    assert value(text, "florin_adapter_holders", adapter="corgi/support") == 0
    assert value(text, "florin_engine_slots", engine="a") == 2
    assert sum(value(text, "florin_engine_slots_used", engine=name) or 0 for name in "ab") == 2

    async def idle() -> str:
        text = await scrape(deployment)
        return text if value(text, "florin_engine_running", engine="a") == 0 else ""

    text = await until(idle)  # as soon as a probe finds it so
    assert value(text, "florin_requests_pending") == 0
    for operation in ("commit", "claim", "confirm", "touch", "lead"):
        assert value(text, "florin_redis_call_seconds_count", operation=operation), operation
    assert value(text, "florin_ledger_transaction_seconds_count", operation="write")
    assert value(text, "florin_build_info") == 1


async def test_client_aborts_are_counted_by_stage(deployment: Deployment):
    gateway = deployment.gateway
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.keys['acme']}\r\n"
    )
    body = json.dumps({"model": "support", "messages": HELLO})

    async def leave(text: str) -> Any:
        port = httpx2.URL(gateway.url).port
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(text.encode())
        await writer.drain()
        return writer

    writer = await leave(head + "content-length: 500\r\n\r\n{")
    await until(lambda: gateway.state.lifecycle.in_flight.requests == 1)
    writer.close()
    await seen(deployment, "florin_client_aborts_total", stage="body")

    for engine in deployment.engines:
        engine.faults.update({"load_delay": 60.0})
    bolts = head.replace(gateway.keys["acme"], gateway.keys["bolt"])
    writer = await leave(f"{bolts}content-length: {len(body)}\r\n\r\n{body}")
    await seen(deployment, "florin_requests_pending")
    writer.close()
    await seen(deployment, "florin_client_aborts_total", stage="waiting")

    for engine in deployment.engines:
        engine.faults.update({"load_delay": 0.0})
    await ask(deployment, "acme")
    for engine in deployment.engines:
        engine.faults.update({"event_delay": 0.2})
    before = len(deployment.calls())
    writer = await leave(f"{head}content-length: {len(body)}\r\n\r\n{body}")
    await until(lambda: len(deployment.calls()) > before)
    writer.close()
    await seen(deployment, "florin_client_aborts_total", stage="answer")

    async with gateway.client("acme") as client:
        events = await client.chat.completions.create(model="support", messages=HELLO, stream=True)
        await anext(aiter(events))
        await events.close()
    await seen(deployment, "florin_client_aborts_total", stage="stream")


# -- the log, of real processes


@pytest.fixture
def engine() -> Iterator[MockProcess]:
    with MockProcess() as running:
        yield running


def customer(gateway: test_cli.Served, engine: MockProcess) -> str:
    """acme, which may use the base model; its key."""
    with httpx2.Client(base_url=gateway.url, headers={"authorization": f"Bearer {test_cli.KEY}"}) as http:
        made = http.post(
            "/admin/v1/engines",
            json={
                "name": "a1", "url": engine.url, "base": "base", "gpu_type": "H200", "slots": 2, "max_rank": 8,
            },
        )  # fmt: skip
        assert made.status_code == 201, made.text
        assert http.post("/admin/v1/tenants", json={"name": "acme", "base_access": True}).status_code == 201
        key = str(http.post("/admin/v1/keys", json={"tenant": "acme"}).json()["key"])
    asked = {"headers": {"authorization": f"Bearer {key}"}}
    # On connections of their own, so by either worker.
    until_now(lambda: all("base" in httpx2.get(f"{gateway.url}/v1/models", **asked).text for _ in range(8)))
    return key


def read_log(errors: Path) -> list[dict[str, Any]]:
    """Every line is an object, or this fails."""
    return [json.loads(line) for line in errors.read_text().splitlines()]


def test_gateway_log_is_json_with_a_line_per_request(  # noqa: PLR0915  # one start for all
    tmp_path: Path, engine: MockProcess
):
    settings = {"FLORIN_LOG_FORMAT": "json", "FLORIN_LOG_LEVEL": "debug", "FLORIN_ACCESS_LOG": "true"}
    with test_cli.serving(tmp_path / "state", FLORIN_WORKERS="2", **settings) as gateway:
        key = customer(gateway, engine)
        messages: Any = [{"role": "user", "content": PROMPT}]
        with OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
            whole = client.chat.completions.with_raw_response.create(
                model="base", messages=messages,
                extra_headers={"x-request-id": "whole", "traceparent": PARENT},
            )  # fmt: skip
            streamed = client.chat.completions.create(
                model="base", messages=messages, stream=True, extra_headers={"x-request-id": "streamed"}
            )
            assert list(streamed)
            engine.faults(event_delay=0.1)
            aborted = client.chat.completions.create(
                model="base", messages=messages, stream=True, extra_headers={"x-request-id": "aborted"}
            )
            next(iter(aborted))
            aborted.close()
        bad = {"authorization": "Bearer fl_a-key-that-nobody-knows", "x-request-id": "refused"}
        httpx2.post(f"{gateway.url}/v1/chat/completions", headers=bad, json={"model": PROMPT})
        forged = "/v1/models/%0A%7B%22level%22:%22error%22%7D%0A"
        httpx2.get(
            f"{gateway.url}{forged}", headers={"authorization": f"Bearer {key}", "x-request-id": "a b"}
        )

        # Each worker's log has a thread of its own, and what it has not written when it is killed is lost.
        for each in (
            '"whole"', '"streamed"', '"aborted"', '"refused"', "/v1/models/", "/admin/v1/tenants",
            "engine.add a1 by bootstrap", "key.create ",
        ):  # fmt: skip
            until_now(lambda each=each: each in gateway.errors.read_text())

        parent = psutil.Process(gateway.process.pid)
        test_cli.workers(parent)[0].kill()
        until_now(lambda: "died with exit code" in gateway.errors.read_text())
        [valkey] = [p for p in parent.children() if "valkey" in p.name()]
        valkey.send_signal(signal.SIGKILL)
        until_now(lambda: "Embedded Valkey exited" in gateway.errors.read_text())
        until_now(lambda: "Redis is reachable again" in gateway.errors.read_text())
        assert gateway.stop() == 0
        said = read_log(gateway.errors)
        text = gateway.errors.read_text()

    assert PROMPT not in text
    assert key not in text
    assert test_cli.KEY not in text
    assert "nobody-knows" not in text
    assert {"time", "level", "logger", "message", "worker"} <= set.intersection(*(set(s) for s in said))
    assert len({s["worker"] for s in said}) >= 3  # parent and workers

    lines = [s for s in said if s["logger"] == "florin.access"]
    by_id = {s["client_request_id"]: s for s in lines if s.get("client_request_id")}
    line = by_id["whole"]
    assert line["request_id"] == whole.headers["x-request-id"]
    assert line["trace_id"] == PARENT.split("-")[1]
    shape = (
        "method",
        "path",
        "status",
        "tenant",
        "adapter",
        "engine",
        "attempts",
        "stream",
        "outcome",
        "error",
    )
    assert [line[name] for name in shape] == [
        "POST", "/v1/chat/completions", 200, "acme", "base", "a1", 1, False, "ok", None,
    ]  # fmt: skip
    assert line["prompt_tokens"] > 0
    assert line["completion_tokens"] > 0
    assert line["key"]
    line = by_id["streamed"]
    assert (line["stream"], line["outcome"], line["status"]) == (True, "ok", 200)
    assert 0 < line["first_token_seconds"] <= line["seconds"]
    line = by_id["aborted"]
    assert (line["stream"], line["outcome"], line["status"]) == (True, "client_abort", 200)
    line = by_id["refused"]
    assert (line["status"], line["outcome"], line["error"]) == (401, "rejected", "invalid_api_key")
    assert (line["client"], line["tenant"], line["engine"], line["attempts"]) == ("127.0.0.1", None, None, 0)
    [line] = [s for s in lines if s["path"].startswith("/v1/models/")]
    assert (line["status"], line["client_request_id"]) == (404, None)
    assert any(s["path"] == "/admin/v1/tenants" and s["status"] == 201 for s in lines)

    events = [s["message"] for s in said if s["logger"] != "florin.access"]
    for event in (
        r"engine\.add a1 by bootstrap",
        r"key\.create \S+ by bootstrap",
        r"Worker \d+ died",
    ):
        assert any(re.match(event, message) for message in events), event


async def test_agent_and_engine_logs_are_json(gateway, run):
    agent = await run("--mock-core", FLORIN_LOG_FORMAT="json")
    await registered(gateway, agent, seconds=120)
    assert await agent.stop() == 0
    said = [json.loads(line) for line in agent.log.splitlines()]
    assert {"florin.engine", "adapters.engine_agent.supervisor"} <= {s["logger"] for s in said}
    assert all(s["engine"] == "h1" for s in said if s["logger"] == "florin.engine")
    assert any(s["message"].startswith("adds --enable-lora:") for s in said), agent.log


# -- alerts, set off by what they are about


@pytest.mark.usefixtures("promtool")
async def test_surge_of_invalid_keys_fires_the_alert(deployment: Deployment, tmp_path: Path):
    async def refused(times: int) -> str:
        async with deployment.gateway.http("fl_gone_gone") as http:
            while times:  # a starved machine may lose sight of Redis, and then says 503 instead
                times -= (await http.get("/v1/models")).status_code == 401
        return await scrape(deployment)

    before = await scrape(deployment)
    assert silent("FlorinInvalidKeySurge", before, tmp_path)
    trickle = await refused(3)
    assert not fires("FlorinInvalidKeySurge", before, trickle, tmp_path)
    assert fires("FlorinInvalidKeySurge", before, await refused(30), tmp_path)


@pytest.mark.usefixtures("promtool")
async def test_eviction_thrash_fires_the_alert(
    deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Three adapters in turn on two slots: each request finds its adapter gone."""
    caplog.set_level("INFO")
    async with deployment.gateway.http() as http:
        assert (await http.put("/admin/v1/engines/b/state", json={"state": "cordoned"})).status_code == 200
    for tenant in ("acme", "bolt"):
        await ask(deployment, tenant)
    before = await seen(deployment, "florin_request_duration_seconds_count", 2, engine="a")
    assert silent("FlorinEvictionThrash", before, tmp_path)
    for tenant in ("acme", "bolt") * 5:
        await ask(deployment, tenant)
    calm = await seen(deployment, "florin_request_duration_seconds_count", 12, engine="a")
    assert not fires("FlorinEvictionThrash", before, calm, tmp_path)
    for tenant in ("corgi", "acme", "bolt"):
        await asyncio.sleep(1.1)  # a fresh load is protected for a second
        await ask(deployment, tenant)
    during = await seen(deployment, "florin_evictions_total", 3, engine="a")
    assert fires("FlorinEvictionThrash", before, during, tmp_path)
    assert re.search(r"Engine a: corgi/support@v1 loaded in \d", caplog.text)
    assert "Engine a: acme/support@v1 evicted for corgi/support@v1" in caplog.text
    assert "engine.state b (state cordoned) by bootstrap" in caplog.text
