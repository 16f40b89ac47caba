"""To zero engines and back, by an autoscaler that follows the metrics as KEDA does: no request is lost, and none pays for
its wait. A minute lasts 0.15 s here: for the engines' starts, the autoscaler, and how long a fleet must be idle."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2
import pytest

from adapters.model import BaseModel, dump
from adapters.store.protocol.registry import Change
from gateway.routing import engine_demand
from loadtests.mock_engine import MockEngine
from tests.support.forms import LONG
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import PATIENCE_S, until

MINUTE = 0.15
START = 2 * MINUTE
"""How long an engine takes to start."""
POLL = MINUTE / 2
WANTED = re.compile(r'^florin_engines_wanted\{base_model="base",gpu_type="h100"\} (.+)$', re.MULTILINE)
WAITING = re.compile(r'^florin_requests_waiting\{base_model="base"\} (.+)$', re.MULTILINE)
CYCLES = range(200) if LONG else range(1, 3)
"""In every third one, the engine dies while it loads; in the next, a request comes while the last engine stops."""
CALLS = {"acme": 3, "bolt": 2, "corgi": 1}
TENANTS = [tenant for tenant, count in CALLS.items() for _ in range(count)]


@dataclass
class Site:
    gateways: list[Gateway]
    tmp: Path

    async def call(self, n: int, tenant: str, *, stream: bool) -> str:
        """One call of the tenant's adapter, at one of the gateways; its request's id."""
        gateway = self.gateways[n % len(self.gateways)]
        async with self.client(gateway, tenant) as http:
            answer = await http.post("/v1/chat/completions", json=body(stream=stream))
        assert answer.status_code == 200, answer.text
        assert answer.text.count("data: [DONE]") == stream, answer.text
        assert '"error"' not in answer.text
        return str(answer.headers["x-request-id"])

    @property
    def waiting(self) -> int:
        return sum(gateway.state.router.turns.waiting for gateway in self.gateways)

    def client(self, gateway: Gateway, tenant: str) -> httpx2.AsyncClient:
        return gateway.http(self.gateways[0].keys[tenant])

    async def records(self) -> list:
        return [record for gateway in self.gateways for record in await gateway.usage()]


def body(*, stream: bool) -> dict:
    messages = [{"role": "user", "content": "hello"}]
    return {"model": "support", "messages": messages, "max_tokens": 3, "stream": stream}


@dataclass
class Autoscaler:
    """Runs as many engines as the query of deploy/autoscaling says: none, or one at a time here, like a StatefulSet.
    Mutable."""

    site: Site
    mock: MockEngine | None = None
    up: dict[str, float] = field(default_factory=dict)
    """Engine → when it was registered, Unix microseconds."""
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    dies: bool = False
    """The next engine dies while it loads."""
    may_start: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return f"pod-{len(self.up)}"

    async def run(self) -> None:
        while True:
            desired = await self.desired()
            if self.mock is None and desired:
                await self.start()
            elif self.mock is not None and not self.mock.alive:  # the kubelet restarts its container
                await asyncio.sleep(START)
                await self.mock.revive()
            elif self.mock is not None and not desired:
                await self.stop()
            await asyncio.sleep(POLL)

    async def desired(self) -> float:
        """`max(florin_engines_wanted{…}) or clamp_max(max(florin_requests_waiting{…}), 1)`"""
        texts = []
        for gateway in self.site.gateways:
            async with gateway.http() as http:
                texts.append((await http.get("/metrics")).text)
        wanted = [float(v) for text in texts for v in WANTED.findall(text)]
        waiting = [float(v) for text in texts for v in WAITING.findall(text)]
        assert len(waiting) == len(texts), "also without an engine"
        return max(wanted) if wanted else min(1, max(waiting))

    async def start(self) -> None:
        await self.may_start.wait()
        await asyncio.sleep(START)
        self.mock = MockEngine(max_loras=2)
        await self.mock.start()
        dies, self.dies = self.dies, False
        if dies:
            self.mock.faults.update({"load_held": True})
        gateway, last = self.site.gateways[0], self.name
        self.up[f"pod-{len(self.up) + 1}"] = time.time_ns() // 1000
        await gateway.add_engine(self.name, self.mock.url, epoch=self.name)
        await gateway.commit(Change("engine", last, None))
        if dies:
            held = gateway.state.residency.held
            await until(lambda: held(self.name).loading)
            self.mock.die()
            self.mock.faults.reset()

    async def stop(self) -> None:
        """As its agent does on SIGTERM: no new requests, then those that run, then the end."""
        assert self.mock is not None
        mock, gateway = self.mock, self.site.gateways[0]
        async with gateway.http() as http:
            path = f"/admin/v1/engines/{self.name}/stopping"

            async def moved() -> bool:
                answer = await http.put(path, json={"epoch": self.name, "seconds": PATIENCE_S})
                return bool(answer.json()["moved"])

            await until(moved)
        self.draining.set()
        await until(
            lambda: all(not g.state.catalog.engines[self.name].takes_requests for g in self.site.gateways)
        )
        await until(lambda: not sum(mock.state.running.values()))
        await mock.stop()
        stopped = replace(gateway.state.catalog.engines[self.name], stopped=time.time_ns() // 1000)
        remembered = len(self.up) % 2  # otherwise it was stopped for so long that it has been removed
        await gateway.commit(Change("engine", self.name, dump(stopped) if remembered else None))
        self.mock = None


@pytest.fixture
async def site(
    tmp_path: Path, valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    monkeypatch.setattr(engine_demand, "WINDOW", 5 * MINUTE)
    monkeypatch.setattr(engine_demand, "HALF_LIFE", MINUTE / 6)
    monkeypatch.setattr(engine_demand, "SAMPLE_SECONDS", POLL)
    settings = {"engine_start_timeout": PATIENCE_S, "probe_interval": POLL, "keep_alive_interval": MINUTE}
    async with AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(running_gateway(tmp_path / name, valkey_url, prefix, **settings))
            for name in ("one", "two")
        ]
        first = gateways[0]
        await first.commit(Change("base", "base", dump(BaseModel("base"))))  # an engine has been there once
        for tenant in CALLS:
            await first.add_tenant(tenant)
            await first.add_adapter(f"{tenant}/support", fake_adapter(tmp_path / tenant))
        for gateway in gateways:
            await until(
                lambda g=gateway: len(g.state.directory.keys) >= 3 and len(g.state.catalog.adapters) == 3
            )
            await until(lambda g=gateway: g.state.catalog.bases)
        yield Site(gateways, tmp_path)


@pytest.mark.timeout(3600)  # the long form's 200 cycles
async def test_no_request_is_lost_or_billed_for_its_wait(site: Site):
    scaler = Autoscaler(site)
    scaling = asyncio.create_task(scaler.run())
    answered: list[str] = []
    for cycle in CYCLES:
        scaler.draining.clear()
        scaler.may_start.clear()
        scaler.dies = cycle % 3 == 1
        calls = [
            asyncio.create_task(site.call(n, tenant, stream=(n + cycle) % 2 == 0))
            for n, tenant in enumerate(TENANTS)
        ]
        leaves = asyncio.create_task(site.call(cycle, "acme", stream=True))
        await until(lambda: site.waiting == len(TENANTS) + 1)
        leaves.cancel()
        await until(lambda: site.waiting == len(TENANTS))
        scaler.may_start.set()
        answered += await asyncio.gather(*calls)
        if cycle % 3 == 2:  # one comes while the last engine stops, so that another one must start
            await scaler.draining.wait()
            answered.append(await site.call(cycle, "acme", stream=True))
        await until(lambda: scaler.mock is None or scaling.done())
        assert not scaling.done(), scaling.exception()
    scaling.cancel()
    records = await site.records()
    done = [record for record in records if record.outcome == "ok"]
    assert sorted(record.request_id for record in done) == sorted(answered)
    assert all(record.billable for record in done)
    assert {record.outcome for record in records} <= {"ok", "failover"}, "who left was not served"
    assert not any(record.billable for record in records if record.outcome != "ok")
    assert all(record.dispatched >= scaler.up[record.engine] for record in records)
    assert all(len(g.state.router.turns.queue("base").in_flight) == 0 for g in site.gateways)


async def test_a_stream_is_kept_alive_and_the_adapter_that_most_wait_for_is_loaded_first(site: Site):
    calls = [asyncio.create_task(site.call(0, tenant, stream=False)) for tenant in reversed(TENANTS)]
    gateway = site.gateways[0]
    await until(lambda: gateway.state.router.turns.waiting == len(calls))
    async with (
        site.client(gateway, "acme") as http,
        http.stream("POST", "/v1/chat/completions", json=body(stream=True)) as answer,
        MockEngine(max_loras=8) as mock,
    ):
        lines = answer.aiter_lines()
        assert await anext(lines) == ": keep-alive"
        await gateway.add_engine("late", mock.url, slots=8)
        rest = [line async for line in lines]
        await asyncio.gather(*calls)
        loaded = [call.name for call in mock.state.admin if call.action == "load" and call.status == 200]
    assert "data: [DONE]" in rest
    versions = gateway.state.catalog.by_engine_name.ids
    assert [versions[name] for name in loaded] == [f"{tenant}/support@v1" for tenant in CALLS]
