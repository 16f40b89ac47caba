from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from loadtests.mock_engine import MockEngine
from tests.support.archives import adapter_files
from tests.support.engine_hosts import Agent, end, free_port, start_agent
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.lora import LLAMA
from tests.support.waiting import until

EACH_UNLOAD = pytest.mark.parametrize(
    "unload", ["forgets", pytest.param("removes", marks=pytest.mark.long), "refuses"]
)
"""For promises that depend on what engines do when they unload an adapter."""

MOCK = (sys.executable, "-m", "loadtests.mock_engine.vllm", "serve")


@dataclass
class Deployment:
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
def unload() -> str:
    """What the engines' unloads do."""
    return "forgets"


@pytest.fixture
async def deployment(gateway: Gateway, tmp_path: Path, unload: str) -> AsyncIterator[Deployment]:
    async with MockEngine(unload=unload) as a, MockEngine(unload=unload) as b:
        await gateway.add_engine("a", a.url, gpu_type="h100")
        await gateway.add_engine("b", b.url, gpu_type="l40s")
        for tenant in ("acme", "bolt", "corgi"):
            await gateway.add_tenant(tenant)
            await gateway.add_adapter(f"{tenant}/support", fake_adapter(tmp_path / tenant))
        # Engines serve before they are first probed, but nothing shows them as up.
        await until(lambda: [state.healthy for state in gateway.state.pool.states()] == [True, True])
        yield Deployment(gateway, a, b, tmp_path)


@pytest.fixture
async def run(gateway: Gateway, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Agent]]]:
    """Starts an agent; whatever of it is left at the end is killed, and the test fails."""
    agents: list[Agent] = []

    async def start(
        *flags: str,
        name: str = "h1",
        port: int = 0,
        engine: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
        **env: str,
    ) -> Agent:
        port = port or free_port()
        command = (
            *(engine or (*MOCK, "/models/base")),
            *("--served-model-name", "base", "--port", str(port), "--max-loras", "2"),
            *("--max-cpu-loras", "8", "--max-lora-rank", "8", *flags),
        )
        home = tmp_path / f"cache-{name}"
        agent = await start_agent(gateway, name, home, port, ("--gpu-type", "H100", *options), command, **env)
        agents.append(agent)
        return agent

    yield start
    await end(*agents)


@pytest.fixture
async def admin(gateway: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    """An operator's client; its paths begin below /admin/v1/."""
    async with gateway.http() as client:
        client.base_url = httpx2.URL(f"{gateway.url}/admin/v1/")
        yield client


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A base model's directory, as far as Florin reads it."""
    root = tmp_path / "model"
    root.mkdir()
    (root / "config.json").write_text(json.dumps(LLAMA.config))
    return root


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[MockEngine]:
    """A mock engine in this process, whose base model can be read."""
    async with MockEngine(root=str(model)) as running:
        yield running


@pytest.fixture
async def mock() -> AsyncIterator[MockEngine]:
    """The same without files, of another base model."""
    async with MockEngine(base="tiny/base") as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """A sound adapter's."""
    return adapter_files(tmp_path)
