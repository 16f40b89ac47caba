"""Slow and hostile clients and engines against a real gateway with short limits. What they take up is bounded, it
is given back, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pytest

from loadtests.mock_engine import MockEngine
from tests.integration.test_data_plane import HELLO
from tests.support.harness import OPERATOR_KEY, Gateway, fake_adapter, running_gateway
from tests.support.waiting import PATIENCE_S, until
from tests.unit.gateway.transport.serving import client

CHAT = "/v1/chat/completions"
LIMITS = {
    "header_timeout": PATIENCE_S, "body_timeout": PATIENCE_S, "write_timeout": PATIENCE_S, "keep_alive": PATIENCE_S,
    "min_client_rate": 2000.0, "max_connections": 30, "max_connections_per_address": 25,
    "max_answer_bytes": 1_000_000,
}  # fmt: skip


@dataclass
class House:
    gateway: Gateway
    engine: MockEngine
    key: str

    @property
    def address(self) -> str:
        return self.gateway.url.removeprefix("http://")

    def head(self, path: str = CHAT, *headers: str, method: str = "POST") -> bytes:
        key = self.key if path.startswith("/v1/") else OPERATOR_KEY
        lines = [f"{method} {path} HTTP/1.1", "host: a", f"authorization: Bearer {key}", *headers]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def request(self, **fields: object) -> bytes:
        body = orjson.dumps({"model": "support", "messages": HELLO, **fields})
        return self.head(CHAT, f"content-length: {len(body)}") + body

    async def closed(self, reason: str) -> float:
        async with self.gateway.http() as http:
            text = (await http.get("/metrics")).text
        found = re.search(rf'^florin_connections_closed_total{{reason="{reason}"}} (\S+)', text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    async def serves(self) -> None:
        async with client(self.address) as wire:
            await wire.send(self.request(max_tokens=2))
            assert (await wire.response()).status == 200

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        """Clients have a second or two. Nothing that is to succeed is done meanwhile."""
        connections = self.gateway.app.connections
        patient = connections.limits
        connections.limits = replace(
            patient, header_timeout=1.0, body_timeout=1.0, write_timeout=2.0, keep_alive=2.0
        )
        try:
            yield
        finally:
            connections.limits = patient

    def idle(self) -> bool:
        return self.gateway.state.router._leases.in_flight == 0 and "0 requests" in repr(
            self.gateway.state.lifecycle.in_flight
        )


@pytest.fixture
async def house(tmp_path: Path, valkey_url: str, prefix: str) -> AsyncIterator[House]:
    async with (
        MockEngine(max_model_len=10_000_000) as engine,
        running_gateway(tmp_path / "state", valkey_url, prefix, **LIMITS) as gateway,
    ):
        await gateway.add_engine("a", engine.url)
        key = await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        yield House(gateway, engine, key)


def memory() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_megabytes_of_headers_without_a_key(house: House):
    before = memory()
    for path in ("/v1/models", "/healthz"):
        async with client(house.address) as wire:
            await wire.send(f"GET {path} HTTP/1.1\r\nhost: a\r\n".encode())
            for i in range(2000):
                await wire.send(b"x%d: " % i + b"y" * 16_000 + b"\r\n")
                if wire.writer.is_closing():
                    break
            assert [(r.status, r.code) for r in await wire.responses()] == [(431, "headers_too_large")]
    assert memory() - before < 64_000_000
    assert await house.closed("headers_too_large") == 2
    await house.serves()


async def test_silence_half_headers_half_bodies_and_idle_connections(house: House):
    async with (
        client(house.address) as silent,
        client(house.address) as half_head,
        client(house.address) as half_body,
        client(house.address) as admin_body,
        client(house.address) as slow_body,
        client(house.address) as idle,
    ):
        await half_head.send(b"GET /v1/models HTTP/1.1\r\nhost: a\r\nauthoriz")
        await half_body.send(house.head(CHAT, "content-length: 100") + b"{")
        await admin_body.send(house.head("/admin/v1/tenants", "content-length: 100") + b"{")
        await slow_body.send(house.head(CHAT, "content-length: 100000"))
        await idle.send(house.head("/v1/models", method="GET"))
        assert (await idle.response()).status == 200

        async def drip() -> None:
            while True:
                await slow_body.send(b" ")
                await asyncio.sleep(0.1)

        dripping = asyncio.ensure_future(drip())
        with house.impatient():
            assert await silent.rest() == b""
            for wire in (half_head, half_body, admin_body, slow_body):
                assert [(r.status, r.code) for r in await wire.responses()] == [(408, "request_timeout")]
            assert await idle.rest() == b""
        dripping.cancel()
    assert await house.closed("header_timeout") == 2
    assert await house.closed("body_timeout") == 3
    assert await house.closed("idle") == 1
    assert house.idle()
    await house.serves()


@contextlib.asynccontextmanager
async def stalled(house: House) -> AsyncIterator[asyncio.StreamWriter]:
    """A client that reads nothing and whose kernel takes little."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = house.address.split(":")
    made.connect((host, int(port)))
    made.setblocking(False)
    _, writer = await asyncio.open_connection(sock=made, limit=1)
    try:
        yield writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def test_a_client_that_never_reads_its_stream(house: House, caplog):
    await house.serves()
    caplog.clear()
    house.engine.faults.update({"merge": 100, "event_delay": 0.0001})
    async with stalled(house) as writer:
        writer.write(house.request(stream=True, max_tokens=100_000, ignore_eos=True))
        await until(lambda: house.engine.state.calls[-1].outcome == "running")
        before = memory()
        with house.impatient():
            await until(house.idle)
        assert memory() - before < 100_000_000  # the engine is in this process, too
        call = house.engine.state.calls[-1]
        await until(lambda: call.outcome == "aborted")
    record = (await house.gateway.usage("acme"))[-1]
    assert (record.outcome, record.usage_source) == ("client_abort", "engine_partial")
    assert 0 < record.completion_tokens <= call.sent
    assert await house.closed("write_timeout") == 1
    assert [r.getMessage() for r in caplog.records if r.levelname != "INFO"] == []
    await house.serves()


async def test_a_client_that_never_reads_a_whole_answer(house: House):
    house.gateway.state.lifecycle.delivery.max_answer_bytes = 64_000_000
    house.engine.faults.update({"rubbish": json.dumps(answer("x" * 8_000_000))})
    async with stalled(house) as writer:
        writer.write(house.request())
        await until(lambda: house.engine.state.calls)
        await until(house.idle)
        [record] = await house.gateway.usage("acme")
        assert (record.outcome, record.usage_source, record.completion_tokens) == ("ok", "engine_final", 2)
        with house.impatient():
            await until(lambda: not house.gateway.app.connections.open)
    assert await house.closed("write_timeout") == 1


def answer(text: str) -> dict[str, object]:
    return {
        "id": "x", "object": "chat.completion", "created": 1, "model": "x",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }  # fmt: skip


async def test_a_client_that_never_reads_the_admin_api(house: House):
    """Pipelined requests whose answers fill every buffer."""
    open_ = house.gateway.app.connections.open
    async with stalled(house) as writer:
        for _ in range(100):
            writer.write(house.head("/openapi.json", method="GET") * 50)
            await asyncio.sleep(0.02)
            if any(connection.flow.write_paused for connection in open_):  # type: ignore[attr-defined]  # the sweep's view has none
                break
        with house.impatient():
            await until(lambda: not open_)
    assert await house.closed("write_timeout") == 1
    await house.serves()
