"""What would be answered too late is refused at once, and who is refused is told when to come again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import replace
from urllib.parse import urlsplit

import httpx2
import pytest

from gateway.admission.overload import MOST_TICKETS
from loadtests.mock_engine import MockEngine
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import PATIENCE_S

BODY = {"model": "support", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


async def ask(client: httpx2.AsyncClient) -> httpx2.Response:
    return await client.post("/v1/chat/completions", json=BODY)


async def test_requests_with_too_long_an_expected_wait_are_refused(tmp_path, valkey_url, prefix):
    settings = {"probe_interval": 0.05, "queue_timeout": 4.0}
    async with (
        MockEngine(max_num_seqs=2) as engine,
        running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway,
    ):
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        async with gateway.http(gateway.keys["acme"]) as client, gateway.http() as operator:
            assert (await ask(client)).status_code == 200
            engine.faults.update({"event_delay": 0.25})
            refused: list[httpx2.Response] = []

            async def one_after_the_other() -> None:
                while not refused:
                    answer = await ask(client)
                    if answer.status_code != 200:
                        refused.append(answer)

            # Two at a time, each half a second: the last of forty waits for ten.
            asking = [asyncio.create_task(one_after_the_other()) for _ in range(40)]
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            answer = refused[0]
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["type"]) == (503, "overloaded", "server_error")
            assert int(answer.headers["retry-after"]) >= 5  # above the setting, rounded up
            assert "currently wait" in error["message"]
            heard = {call.headers["x-request-id"].rpartition("-")[0] for call in engine.state.calls}
            assert answer.headers["x-request-id"] not in heard
            assert len(heard) > 1
            assert (await operator.get("/healthz")).status_code == 200
            assert (await operator.get("/readyz")).status_code == 200
            engine.faults.update({"event_delay": 0.0})
            await asyncio.gather(*asking)
            assert (await ask(client)).status_code == 200


CHAT = "/v1/chat/completions"
BODY_BYTES = json.dumps(BODY).encode()


def head(*lines: str, length: int | None = len(BODY_BYTES), version: str = "1.1") -> bytes:
    if length is not None:
        lines = (*lines, f"content-length: {length}")
    return "\r\n".join([f"POST {CHAT} HTTP/{version}", "host: florin", *lines, "", ""]).encode()


@contextlib.asynccontextmanager
async def overloaded_gateway(tmp_path, valkey_url, prefix, **settings):
    """One that takes nothing more, and an engine with one adapter."""
    async with (
        MockEngine() as engine,
        running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway,
    ):
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        watch = gateway.state.lifecycle.loop_watch
        held = [watch.issue_ticket() for _ in range(MOST_TICKETS)]
        watch.overloaded = True
        yield gateway, engine
        for ticket in held:
            ticket.close()
        assert watch.open_tickets == 0


async def test_overloaded_worker_refuses_before_reading_the_body(tmp_path, valkey_url, prefix):
    async with overloaded_gateway(tmp_path, valkey_url, prefix) as (gateway, _), gateway.http() as client:
        answer = await client.post(CHAT, content=b"{", headers={"x-request-id": "mine-7"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "overloaded"
        assert answer.json()["error"]["type"] == "server_error"
        assert answer.headers["x-client-request-id"] == "mine-7"
        other = await client.post("/v1/messages", content=b"{")
        assert (other.status_code, other.headers["retry-after"]) == (529, "1")
        assert other.json()["error"]["type"] == "overloaded_error"
        assert other.json()["request_id"] == other.headers["request-id"] == other.headers["x-request-id"]
        assert re.fullmatch("req-[0-9a-f]{28}", answer.headers["x-request-id"])
        assert answer.headers["content-type"] == "application/json"
        metrics = (await client.get("/metrics")).text
        assert 'florin_errors_total{code="overloaded"} 2.0' in metrics
        for path in ("/healthz", "/readyz", "/admin/v1/placement"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/v1/models")).status_code == 403  # an operator's key: it was looked up
        gateway.state.lifecycle.loop_watch.overloaded = False
        assert (await client.post(CHAT, content=b"{")).status_code == 403


async def test_connection_stays_open_after_an_early_refusal(tmp_path, valkey_url, prefix):
    async with overloaded_gateway(tmp_path, valkey_url, prefix, access_log=True) as (gateway, _):
        key = f"authorization: Bearer {gateway.keys['acme']}"
        async with connected(gateway) as (reader, writer):
            for _ in range(2):
                writer.write(head(key, length=300_000) + b"x" * 300_000)
                assert (await response(reader))[0] == 503
            writer.write((head(key) + BODY_BYTES) * 3)  # pipelined
            assert [(await response(reader))[0] for _ in range(3)] == [503] * 3
            gateway.state.lifecycle.loop_watch.overloaded = False
            writer.write((head(key) + BODY_BYTES) * 2)
            assert [(await response(reader))[0] for _ in range(2)] == [200] * 2


@pytest.mark.parametrize(("overloaded", "expected"), [(True, 503), (False, 401)])
async def test_a_connection_on_which_a_request_was_refused_is_closed_when_it_stays_idle(
    tmp_path, valkey_url, prefix, overloaded, expected
):
    async with overloaded_gateway(tmp_path, valkey_url, prefix) as (gateway, _):
        gateway.state.lifecycle.loop_watch.overloaded = overloaded
        limits = gateway.app.connections.limits
        gateway.app.connections.limits = replace(limits, keep_alive=0.5)
        async with connected(gateway) as (reader, writer):
            writer.write(head(length=300_000))
            assert (await response(reader))[0] == expected
            writer.write(b"x" * 300_000)  # after the answer
            with contextlib.suppress(ConnectionResetError):  # it may have been idle for too long before
                async with asyncio.timeout(PATIENCE_S):
                    assert await reader.read() == b""


async def test_stopping_gateway_closes_connections_of_refused_requests(tmp_path, valkey_url, prefix):
    async with (
        overloaded_gateway(tmp_path, valkey_url, prefix) as (gateway, _),
        connected(gateway) as (reader, writer),
    ):
        gateway.app.stop()
        writer.write(head() + BODY_BYTES)
        status, headers, _ = await response(reader)
        assert (status, headers["connection"]) == (503, "close")


@pytest.mark.parametrize(
    "request_",
    [
        head("expect: 100-continue", length=4_000_000),
        head(length=30_000_000) + b"x" * 3_000_000,
        head("transfer-encoding: chunked", length=None) + b"5\r\nhello\r\n",
    ],
)
async def test_a_connection_that_cannot_go_on_is_closed_after_the_refusal(
    tmp_path, valkey_url, prefix, request_
):
    async with (
        overloaded_gateway(tmp_path, valkey_url, prefix) as (gateway, _),
        connected(gateway) as (reader, writer),
    ):
        writer.write(request_)
        status, headers, body = await response(reader)
        assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
        assert json.loads(body)["error"]["code"] == "overloaded"
        writer.write_eof()
        assert await reader.read() == b""
        async with gateway.http() as client:
            metrics = (await client.get("/metrics")).text
        assert 'florin_errors_total{code="overloaded"} 1.0' in metrics


async def test_waiting_requests_do_not_count_as_load(tmp_path, valkey_url, prefix):
    async with overloaded_gateway(tmp_path, valkey_url, prefix) as (gateway, engine):
        engine.faults.update({"first_byte_delay": 0.3})
        watch = gateway.state.lifecycle.loop_watch
        watch.overloaded = False
        request = head(f"authorization: Bearer {gateway.keys['acme']}")
        async with connected(gateway) as (one, writer), connected(gateway) as (several, pipelining):
            writer.write(request)  # the body does not come
            pipelining.write((request + BODY_BYTES) * 5)
            while gateway.state.lifecycle.in_flight.requests < 2 or watch.open_tickets > MOST_TICKETS:
                await asyncio.sleep(0.01)
            watch.overloaded = True
            writer.write(BODY_BYTES)
            assert (await response(one))[0] == 200  # whoever has been let in is served
            assert [(await response(several))[0] for _ in range(5)] == [200] * 5


@contextlib.asynccontextmanager
async def connected(gateway: Gateway):
    reader, writer = await asyncio.open_connection(*urlsplit(gateway.url).netloc.split(":"))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(PATIENCE_S):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:-2])
        return int(lines[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))
