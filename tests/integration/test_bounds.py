"""What a key, a tenant and a worker may have in flight, counted over real sockets: let in, refused, and given
back on every path."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import openai
import orjson
import pytest

from loadtests.mock_engine import MockEngine
from tests.integration.test_data_plane import HELLO
from tests.integration.uploading import Wire
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import until

CHAT = "/v1/chat/completions"
NOTHING = "<InFlightLimits 0 requests, 0 bytes, 0 keys, 0 tenants>"
MIB = 1024 * 1024


class Wires:
    """Connections that are closed before the loop is."""

    def __init__(self) -> None:
        self.made: list[Wire] = []

    async def to(self, url: str) -> Wire:
        self.made.append(await Wire.to(url))
        return self.made[-1]

    async def close(self) -> None:
        for wire in self.made:
            await wire.close()


@pytest.fixture
async def wires():
    made = Wires()
    yield made
    await made.close()


class BoundedGateway:
    """A gateway with narrow bounds, one engine, two tenants."""

    def __init__(self, gateway: Gateway, wires: Wires) -> None:
        self.gateway = gateway
        self.wires = wires

    @property
    def bounds(self) -> str:
        return repr(self.gateway.state.lifecycle.in_flight)

    async def wire(self, tenant: str, length: int | None) -> Wire:
        wire = await self.wires.to(self.gateway.url)
        key = self.gateway.keys[tenant]
        await wire.begin(length, path=CHAT, content_type="application/json", authorization=f"Bearer {key}")
        return wire

    async def until(self, bounds: str) -> None:
        await until(lambda: bounds in self.bounds, what=lambda: self.bounds)


@pytest.fixture
async def house(tmp_path: Path, valkey_url: str, prefix: str, wires: Wires):
    narrow = {"max_key_requests": 2, "max_tenant_requests": 3, "max_worker_requests": 5}
    sizes = {"max_body_bytes": 100_000, "max_key_bytes": 100_000, "max_tenant_bytes": 150_000}
    async with MockEngine() as engine:
        settings = narrow | sizes | {"max_worker_bytes": 200_000}
        async with running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway:
            await gateway.add_engine("a", engine.url)
            for tenant in ("acme", "bolt"):
                await gateway.add_tenant(tenant)
                await gateway.add_adapter(f"{tenant}/support", fake_adapter(tmp_path / tenant))
            engine.faults.update({"event_delay": 0.001})
            yield BoundedGateway(gateway, wires)
            await wires.close()


def body(size: int = 0) -> bytes:
    return orjson.dumps({"model": "support", "messages": [{"role": "user", "content": "x" * size}]})


async def test_a_request_counts_from_its_body_s_first_byte_until_its_answer(house: BoundedGateway):
    whole = body(50_000)
    first, second = await house.wire("acme", len(whole)), await house.wire("acme", None)
    await first.send(whole[:40_000])
    await house.until("2 requests, 40000 bytes")
    async with house.gateway.client("acme") as client:
        with pytest.raises(
            openai.RateLimitError, match="This key's limit of 2 requests in flight is reached"
        ) as caught:
            await client.chat.completions.create(model="support", messages=HELLO)
    error = caught.value
    assert (error.status_code, error.code, error.type) == (429, "too_many_requests", "rate_limit_error")
    assert error.response.headers["retry-after"] == "1"
    async with house.gateway.client("bolt") as client:  # somebody else is not concerned
        await client.chat.completions.create(model="support", messages=HELLO)
    await first.send(whole[40_000:])
    assert (await first.answer())[0] == 200
    await second.close()  # hung up in the middle of its body
    await house.until(NOTHING)


async def test_bytes_are_refused_when_they_come_and_what_was_held_is_given_back(house: BoundedGateway):
    first, second = await house.wire("acme", 90_000), await house.wire("acme", None)
    await first.send(b" " * 80_000)
    await house.until("80000 bytes")
    await second.send(b"7530\r\n" + b" " * 30_000 + b"\r\n")  # the end of this body never comes
    assert await second.refusal() == (429, "too_many_requests")
    await house.until("1 requests, 80000 bytes")
    other = await house.wire("bolt", 90_000)
    await other.send(b" " * 90_000)
    status, code = await other.refusal()  # of rubbish, for there was room
    assert (status, code) == (400, "invalid_json")
    for wire in (first, second, other):
        await wire.close()
    await house.until(NOTHING)


async def test_the_worker_as_a_whole_answers_503(house: BoundedGateway):
    wires = []
    for tenant in ("acme", "acme", "bolt", "bolt"):
        wires.append(await house.wire(tenant, 1000))
        await wires[-1].send(b" ")
    text = await house.gateway.add_tenant("corgi")
    wires.append(await house.wire("corgi", 1000))
    await wires[-1].send(b" ")
    await house.until("5 requests")
    async with house.gateway.http(text) as http:
        refused = await http.post(CHAT, content=body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "worker_full")
    assert (refused.json()["error"]["type"], refused.headers["retry-after"]) == ("server_error", "1")
    for wire in wires:
        await wire.close()
    await house.until(NOTHING)


async def test_no_request_stays_counted_after_its_answer(house: BoundedGateway, subtests: pytest.Subtests):
    good = {"model": "support", "messages": HELLO, "max_tokens": 3}
    cases = {
        "rubbish": (b"{", 400),
        "too long": (body(99_950), 413),
        "too complex": (b'{"x":[' + b"[]," * 30_000 + b"[]]}", 400),
        "no model": (orjson.dumps(good | {"model": "nothing"}), 404),
        "whole": (orjson.dumps(good), 200),
        "stream": (orjson.dumps(good | {"stream": True}), 200),
    }
    async with house.gateway.http(house.gateway.keys["acme"]) as http:
        for case, (content, status) in cases.items():
            with subtests.test(case):
                for _ in range(4):
                    assert (await http.post(CHAT, content=content)).status_code == status
                await house.until(NOTHING)


async def test_disconnected_stream_is_no_longer_counted(house: BoundedGateway):
    content = orjson.dumps({**json.loads(body(60_000)), "stream": True, "max_tokens": 10_000})
    wire = await house.wire("acme", len(content))
    await wire.send(content)
    await wire.until(b"data:")
    await house.until(
        "<InFlightLimits 1 requests, 0 bytes, 1 keys, 1 tenants>"
    )  # nothing is retried any more
    await wire.close()
    await house.until(NOTHING)


async def test_shutting_down_gives_everything_back(
    tmp_path: Path, valkey_url: str, prefix: str, wires: Wires
):
    async with running_gateway(tmp_path / "state", valkey_url, prefix) as gateway:
        await gateway.add_tenant("acme")
        house = BoundedGateway(gateway, wires)
        wire = await house.wire("acme", 1000)
        await wire.send(b" " * 10)
        await house.until("1 requests, 10 bytes")
        gateway.server.config.timeout_graceful_shutdown = 1
        bounds = gateway.state.lifecycle.in_flight
    assert repr(bounds) == NOTHING
    assert await wire.refusal() == (503, "shutting_down")


async def test_the_body_is_not_kept_while_its_answer_streams(
    tmp_path: Path, valkey_url: str, prefix: str, wires: Wires
):
    """Neither parsed nor as bytes, neither by Florin nor by its client of the engine."""
    asked = {"model": "support", "messages": [{"role": "user", "content": "x" * MIB}]}
    content = orjson.dumps({**asked, "stream": True, "max_tokens": 10_000})
    async with MockEngine(max_model_len=1_000_000, log=0) as engine:
        engine.faults.update({"event_delay": 0.1})
        async with running_gateway(tmp_path / "state", valkey_url, prefix) as gateway:
            await gateway.add_engine("a", engine.url)
            key = await gateway.add_tenant("acme")
            await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
            tracemalloc.start()
            try:
                for _ in range(2):
                    wire = await wires.to(gateway.url)
                    fields = {"content_type": "application/json", "authorization": f"Bearer {key}"}
                    await wire.begin(len(content), path=CHAT, **fields)
                    await wire.send(content)
                    await wire.until(b"data:")
                gc.collect()
                traces = tracemalloc.take_snapshot().traces
            finally:
                tracemalloc.stop()
            await wires.close()
    ours = [t for t in traces if "mock_engine" not in str(t.traceback)]
    assert [str(t) for t in ours if t.size > 500_000] == []
