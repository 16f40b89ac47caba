from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtests.mock_engine import MockEngine
from tests.harness import Gateway, fake_adapter, running_gateway


@dataclass
class Town:
    """One gateway, two mock engines of two slots, three tenants with one adapter each."""

    gateway: Gateway
    a: MockEngine
    b: MockEngine
    tmp: Path

    @property
    def engines(self) -> list[MockEngine]:
        return [self.a, self.b]

    def loads(self) -> list[tuple[str, str]]:
        """(engine, adapter) of every load that succeeded, in order."""
        found = [
            (call.at, name, call.name)
            for name, engine in (("a", self.a), ("b", self.b))
            for call in engine.state.admin
            if call.action == "load" and call.status == 200
        ]
        return [(engine, adapter) for _, engine, adapter in sorted(found)]

    def calls(self) -> list:
        return [call for engine in self.engines for call in engine.state.calls]


@pytest.fixture
async def gateway(tmp_path: Path, valkey_url: str, prefix: str) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path / "state", valkey_url, prefix) as running:
        yield running


@pytest.fixture
async def town(gateway: Gateway, tmp_path: Path) -> AsyncIterator[Town]:
    async with MockEngine() as a, MockEngine() as b:
        await gateway.add_engine("a", a.url, gpu_type="h100")
        await gateway.add_engine("b", b.url, gpu_type="l40s")
        for tenant in ("acme", "bolt", "corgi"):
            await gateway.add_tenant(tenant)
            await gateway.add_adapter(f"{tenant}/support", fake_adapter(tmp_path / tenant))
        yield Town(gateway, a, b, tmp_path)
