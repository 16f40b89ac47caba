"""What an incident strikes: gateways of two workers, Valkey and mock engines, each in processes of its own,
and one customer. Every setting is as it comes, but for those that an incident names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import psutil

from deploy.demo.gateway import Gateway
from loadtests.chaos.proxy import free_port
from loadtests.chaos.valkey import Valkey
from loadtests.mock_engine import MockProcess
from loadtests.overhead import adapter_files
from loadtests.recovery.clients import Clients

COLD = tuple(f"cold{number}" for number in range(8))
"""Adapters that nobody has asked for, and that are loaded nowhere."""
LOOKS = 12
"""Questions on connections of their own, after which every worker has nearly certainly answered one."""
_UNBOUNDED = {
    f"FLORIN_MAX_{whose}_{what}": str(10**10) for whose in ("KEY", "TENANT") for what in ("REQUESTS", "BYTES")
}
"""There is one customer, and the limits of one are not what is measured."""


class Site:
    """`async with Site(directory) as site`. Mutable: all that runs."""

    def __init__(
        self,
        directory: Path,
        *,
        gateways: int = 1,
        engines: int = 2,
        engine: dict[str, Any] | None = None,
        state: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`engine`: options of each mock engine. `settings`: environment variables of the gateways."""
        self._directory = directory
        self._engine = {"base": adapter_files.BASE, "max_loras": 16, "max_cpu_loras": 16, "log": 0}
        self._engine |= engine or {}
        self.engines = {f"e{number}": MockProcess(**self._engine) for number in range(engines)}
        self.valkey = Valkey(directory / "valkey")
        common = {
            "FLORIN_WORKERS": "2",
            "FLORIN_REDIS_URL": f"redis://127.0.0.1:{self.valkey.port}/0",
            "FLORIN_ARTIFACT_DIR": str(directory / "artifacts"),
            "FLORIN_SEPARATE_LEDGERS": "true",  # each has SQLite, and the registry is what is looked at
            **_UNBOUNDED,
            **(settings or {}),
        }
        self.gateways = [
            Gateway(
                state or directory / f"state-{number}",
                directory / f"gateway-{number}.log",
                port=free_port(),
                settings=common,
            )
            for number in range(gateways)
        ]
        for gateway in self.gateways:
            gateway.operator_key = self.gateways[0].operator_key
        self._stack = AsyncExitStack()
        self.key = ""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, self.valkey.close)
            await asyncio.to_thread(self.valkey.start)
            for engine in self.engines.values():
                stack.push_async_callback(asyncio.to_thread, engine.kill)
                await asyncio.to_thread(engine.start)
            for gateway in self.gateways:
                stack.push_async_callback(asyncio.to_thread, gateway.stop)
                await self.start(gateway)
            await self._register()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def gateway(self) -> Gateway:
        return self.gateways[0]

    async def start(self, gateway: Gateway) -> None:
        gateway.launch()  # on this thread, with which the gateway ends
        await asyncio.to_thread(gateway.wait)

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call the admin API. Raises GatewayError."""
        return await asyncio.to_thread(self.gateway.call, method, f"/admin/v1/{path}", body)

    def clients(self, url: str = "") -> Clients:
        return Clients(url or self.gateway.url, self.key)

    def workers(self) -> set[psutil.Process]:
        """The dead ones, too, until the parent has noticed."""
        return set(psutil.Process(self.gateway.pid).children())

    async def ready(self, status: str, since: float) -> float:
        """Seconds from `since` until /readyz said that of every worker, as far as LOOKS questions tell."""
        return await asyncio.to_thread(self._ready, status, since)

    def _ready(self, status: str, since: float) -> float:
        in_a_row, first = 0, 0.0
        while in_a_row < LOOKS:
            answer = httpx2.get(f"{self.gateway.url}/readyz", headers=_OWN, timeout=20, trust_env=False)
            if answer.json()["status"] == status:
                first = first if in_a_row else time.monotonic()
                in_a_row += 1
            else:
                in_a_row = 0
                time.sleep(0.02)
        return first - since

    async def _register(self) -> None:
        config = str(adapter_files.write_base_config(self._directory / "base"))
        shape = {"gpu_type": "H100", "slots": 16, "cpu_slots": 16, "max_rank": 8, "base_config": config}
        for name, engine in self.engines.items():
            fields = {"name": name, "url": engine.url, "base": adapter_files.BASE}
            await self.call("POST", "engines", fields | shape)
        await self.call("POST", "tenants", {"name": "acme"})
        for seed, name in enumerate(("support", *COLD)):
            source = adapter_files.write_adapter(self._directory / name, seed + 1)
            await self.call("POST", "adapters", {"adapter": f"acme/{name}", "source": str(source)})
            await self.call("PUT", f"adapters/acme/{name}/replicas", {"max_replicas": 1})
        self.key = (await self.call("POST", "keys", {"tenant": "acme", "role": "tenant"}))["key"]
        for gateway in self.gateways:
            clients = self.clients(gateway.url)
            async with clients.asking(2):
                await clients.answered(2 * LOOKS)


_OWN = {"connection": "close"}


@contextmanager
def engines_at(site: Site, **faults: float) -> Iterator[None]:
    """The engines behave like that meanwhile."""
    for engine in site.engines.values():
        engine.faults(**faults)
    yield
    for engine in site.engines.values():
        engine.faults()
