"""The installation under test: gateways with several workers, Valkey with a replica, PostgreSQL and engines,
each in its own processes, connected through proxies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from rich.console import Console

from deploy.demo.gateway import Gateway, GatewayError
from loadtests.chaos import shim
from loadtests.chaos.engines import Engines, MockEngines, RealEngines
from loadtests.chaos.proxy import Proxy, free_port
from loadtests.chaos.shim import Shim
from loadtests.chaos.valkey import Pair
from loadtests.chaos.voices import Crowd
from loadtests.postgres import Postgres

HOT = 3
"""Tenants whose adapters are pinned and therefore always resident somewhere."""
DISK_BYTES = 96 * 2**20
STARTS = 30
SETTINGS = {
    "probe_interval": "0.3",
    "probe_timeout": "1",
    "placement_timeout": "20",
    "connect_timeout": "1",
    "hang_timeout": "3",
    "ejection_time": "2",
    "slow_start": "2",
    "ledger_maintenance_interval": "2",
    "shutdown_grace": "5",
}


class Disk:
    """A gateway's state directory, on its own small file system if possible."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700)
        self.small = _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "none", str(path))
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(65536))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        if self.small:
            _run("umount", "-l", str(self.path))


class GatewayHost:
    """One gateway with its state directory, shim, and proxies to Redis and the database."""

    def __init__(self, world: ChaosCluster, number: int, workers: int) -> None:
        directory = world.directory / f"gateway-{number}"
        self.number, self.workers = number, workers
        self.disk = Disk(directory)
        self.log = world.directory / f"gateway-{number}.log"
        self.redis = Proxy(("127.0.0.1", world.valkeys.primary.port))
        self.postgres = Proxy(("127.0.0.1", world.postgres.port))
        control = world.directory / f"shim-{number}"
        self.shim = Shim(world.library, control) if world.library else None
        self._world = world
        self._port = free_port()
        self.gateway: Gateway | None = None
        self.failed_starts: list[str] = []

    async def start(self) -> None:
        """Start or restart it on the same port and state directory. Failed starts are recorded and retried,
        as by systemd."""
        for _ in range(STARTS):
            try:
                await self._start()
            except GatewayError as error:
                last = str(error).strip().splitlines()[-1]
                self.failed_starts.append(f"gateway {self.number} did not start: {last}")
                await asyncio.sleep(1)
            else:
                return
        raise GatewayError(f"Gateway {self.number} cannot be started: {self.failed_starts[-1]}")

    async def _start(self) -> None:
        settings = {f"FLORIN_{name.upper()}": value for name, value in self._world.settings.items()}
        settings |= {
            "FLORIN_WORKERS": str(self.workers),
            "FLORIN_REDIS_URL": f"redis://127.0.0.1:{self.redis.port}/0",
            "FLORIN_LEDGER_URL": f"postgresql+psycopg://florin@127.0.0.1:{self.postgres.port}/postgres",
            "FLORIN_ARTIFACT_DIR": str(self._world.directory / "artifacts"),
        }
        if self.shim is not None:
            settings |= self.shim.environment
        gateway = Gateway(self.disk.path, self.log, port=self._port, settings=settings)
        gateway.operator_key = self._world.operator_key
        gateway.launch()  # on this thread, because the gateway ends with it
        try:
            await asyncio.to_thread(gateway.wait)
        except GatewayError:
            gateway.stop()
            raise
        self.gateway = gateway

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def crew(self) -> list[psutil.Process]:
        """Its worker processes, oldest first."""
        if self.gateway is None or not self.gateway.alive:
            return []
        children = psutil.Process(self.gateway.pid).children()
        return [process for process in children if _is_worker(process)]

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> Any:
        """Raises GatewayError."""
        if self.gateway is None:
            raise GatewayError("The gateway is not running.")
        return await asyncio.to_thread(self.gateway.call, method, path, body, **query)

    def kill(self) -> None:
        """SIGKILL the supervisor of its workers."""
        if self.gateway is not None:
            os.kill(self.gateway.pid, signal.SIGKILL)
            self.gateway.stop()
            self.gateway = None


class ChaosCluster:
    """`async with ChaosCluster(directory) as world`. Mutable: everything that runs."""

    def __init__(
        self,
        directory: Path,
        *,
        gateways: int = 2,
        workers: int = 2,
        engines: int = 3,
        real: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings`: additional FLORIN_* variables, in lower case without the prefix."""
        self.directory = directory
        self.operator_key = f"operator-{secrets.token_urlsafe(24)}"
        self.settings = SETTINGS | dict(settings or {})
        self.keys: dict[str, str] = {}
        self.houses: list[GatewayHost] = []
        self.proxies: list[Proxy] = []
        """In front of the engines."""
        self._size = gateways, workers, engines
        self._real = real
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        gateways, workers, engines = self._size
        async with AsyncExitStack() as stack:
            (self.directory / "artifacts").mkdir(parents=True)
            self.library = shim.build(self.directory)
            self.engines = await asyncio.to_thread(self._engines, engines)
            stack.push_async_callback(asyncio.to_thread, self.engines.close)
            self.valkeys = Pair(self.directory)
            stack.push_async_callback(asyncio.to_thread, self.valkeys.close)
            self.postgres = await asyncio.to_thread(Postgres)
            stack.push_async_callback(asyncio.to_thread, self._stop_postgres)
            starts = (self.engines.start, self.valkeys.start, self.postgres.start)
            await asyncio.gather(*(asyncio.to_thread(start) for start in starts))
            for engine in self.engines.all:
                await self._proxy(stack, Proxy(("127.0.0.1", engine.port)), self.proxies)
            for number in range(gateways):
                house = GatewayHost(self, number, workers)
                stack.callback(house.disk.close)
                self.houses.append(house)
                await self._proxy(stack, house.redis)
                await self._proxy(stack, house.postgres)
            stack.push_async_callback(self._stop_houses)  # they need the proxies to flush at the end
            await asyncio.gather(*(house.start() for house in self.houses))
            await self._register()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def crowd(self, draw: random.Random) -> Crowd:
        return Crowd([house.url for house in self.houses], self.keys, self.hot, draw)

    @property
    def hot(self) -> tuple[str, ...]:
        return self.engines.tenants[:HOT]

    @property
    def ledger_url(self) -> str:
        return self.postgres.url("postgres")

    def counts(self) -> dict[str, int]:
        """Number of targets per role."""
        workers = sum(house.workers for house in self.houses)
        gateways, engines = len(self.houses), len(self.proxies)
        return {"engine": engines, "gateway": gateways, "worker": workers, "redis": 1, "postgres": 1}

    def skipped(self) -> dict[str, str]:
        """Faults that this machine does not support, and why."""
        reasons = {}
        if not all(house.disk.small for house in self.houses):
            reasons["disk-full"] = "mounting a file system needs root"
        if self.library is None:
            reasons["disk-slow"] = reasons["clock-step"] = "there is no C compiler"
        return reasons

    def _engines(self, count: int) -> Engines:
        if self._real:
            return RealEngines(self.directory, count, Console(stderr=True))
        return MockEngines(self.directory, count)

    async def _proxy(self, stack: AsyncExitStack, proxy: Proxy, into: list[Proxy] | None = None) -> None:
        await proxy.start()
        stack.push_async_callback(proxy.cut)
        if into is not None:
            into.append(proxy)

    def _stop_postgres(self) -> None:
        with contextlib.suppress(ProcessLookupError, AssertionError):
            os.kill(self.postgres.pid, signal.SIGCONT)
        self.postgres.stop()

    async def _stop_houses(self) -> None:
        for house in self.houses:
            for process in house.crew():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()
        running = [house.gateway for house in self.houses if house.gateway is not None]
        await asyncio.gather(*(asyncio.to_thread(gateway.stop) for gateway in running))

    async def _register(self) -> None:
        first = self.houses[0]
        for number, proxy in enumerate(self.proxies):
            name = {"name": f"e{number}", "url": f"http://127.0.0.1:{proxy.port}", "base": self.engines.base}
            await first.call("POST", "/admin/v1/engines", name | self.engines.registration())
        price = {"gpu_type": "H100", "rate_per_gpu_hour": "2.5", "currency": "USD"}
        await first.call("POST", "/admin/v1/prices", price)
        for tenant in self.engines.tenants:
            await first.call("POST", "/admin/v1/tenants", {"name": tenant})
            source = str(self.engines.source(tenant))
            await first.call("POST", "/admin/v1/adapters", {"adapter": f"{tenant}/support", "source": source})
            key = await first.call("POST", "/admin/v1/keys", {"tenant": tenant, "role": "tenant"})
            self.keys[tenant] = key["key"]
            if tenant in self.hot:
                await first.call("PUT", f"/admin/v1/adapters/{tenant}/support/pin", {"pinned": True})
        await asyncio.gather(*(self._up(house) for house in self.houses))

    async def _up(self, house: GatewayHost) -> None:
        """Wait until it knows all keys and reports all engines healthy."""
        for _ in range(300):
            engines = (await house.call("GET", "/admin/v1/engines"))["data"]
            if sum(engine["health"] == "up" for engine in engines) == len(self.proxies):
                return
            await asyncio.sleep(0.1)
        raise GatewayError(f"The gateway does not report its engines healthy: {engines}")


def stop_on_signals() -> asyncio.Event:
    """An event set by SIGINT or SIGTERM, so that the run is stopped cleanly and judged."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def family(roots: Iterable[int]) -> list[psutil.Process]:
    """These processes and all their living descendants."""
    processes = []
    for pid in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            processes += [root, *root.children(recursive=True)]
    return processes


def _is_worker(process: psutil.Process) -> bool:
    try:
        named = process.name() == "florin-worker" or "gateway.serving.workers" in process.cmdline()
        return named and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _run(*command: str) -> bool:
    if sys.platform != "linux":
        return False
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False
