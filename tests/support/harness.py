"""A gateway under test: real sockets, a real Valkey, and mock or real engines."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import httpx2
import uvicorn
from openai import AsyncOpenAI

from adapters.model import Adapter, BaseModel, Engine, Version, dump
from adapters.registry.transaction import Proposal
from adapters.store.protocol.registry import Change
from adapters.store.redis.server import RedisServer
from gateway.app import Florin, create_app
from gateway.config import Settings
from gateway.operations.state import State
from gateway.operations.transaction import change
from gateway.runtime import loop_watchdog
from gateway.serving.runner import HEADERS
from gateway.tenants import directory
from gateway.transport.client_connection import ClientConnection
from tests.support.empty_ledgers import put_sqlite
from tests.support.waiting import PATIENCE_S, until

OPERATOR_KEY = "operator-key-of-the-tests"
loop_watchdog.BLOCKED_SECONDS = math.inf  # tests, engines and clients work in the gateway's loop, too


class Server(uvicorn.Server):
    """Stops when it is told to, instead of looking ten times a second whether it should."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # which renders the headers of every response
        await self._stopping.wait()

    def stop(self) -> None:
        self._stopping.set()


@dataclass
class Gateway:
    """One worker in this process, listening on a free port."""

    app: Florin
    url: str
    server: Server
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> State:
        return self.app.api.state.florin

    def client(self, tenant: str, **options: Any) -> AsyncOpenAI:
        options = {"max_retries": 0, "timeout": PATIENCE_S} | options
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.keys[tenant], **options)

    def http(self, key: str | None = None) -> httpx2.AsyncClient:
        headers = {"authorization": f"Bearer {key or OPERATOR_KEY}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE_S)

    # -- the registry, written directly: the admin API has tests of its own

    async def commit(self, *changes: Change) -> None:
        await change(self.state, lambda _: Proposal(list(changes), None))

    async def add_tenant(self, name: str, *, base_access: bool = False, since: int | None = None) -> str:
        """`since`: what the ledger has of the name from then on is its own. None: now."""
        now = time.time_ns() // 1000
        tenant = directory.Tenant(name, base_access, now if since is None else since)
        key, text = directory.mint(name, directory.Role.TENANT, now)
        await self.commit(
            Change("tenant", name, directory.dump(tenant)), Change("key", key.id, directory.dump(key))
        )
        self.keys[name] = text
        return text

    async def add_key(self, role: directory.Role, tenant: str = "", **fields: Any) -> str:
        """Its text. `fields`: of the key."""
        key, text = directory.mint(tenant, role, time.time_ns() // 1000)
        await self.commit(Change("key", key.id, directory.dump(replace(key, **fields))))
        return text

    async def engine_key(self, engine: str) -> str:
        """The key of that engine's host: always the same."""
        name = f"engine {engine}"
        if name not in self.keys:
            now = time.time_ns() // 1000
            key, self.keys[name] = directory.mint("", directory.Role.ENGINE, now, engine=engine)
            await self.commit(Change("key", key.id, directory.dump(key)))
        return self.keys[name]

    async def add_engine(self, name: str, url: str, *, base: str = "base", **fields: Any) -> Engine:
        fields = {"gpu_type": "h100", "slots": 2, "max_rank": 8} | fields
        engine = Engine(name=name, url=url, base_model=base, **fields)
        await self.commit(Change("base", base, dump(BaseModel(base))), Change("engine", name, dump(engine)))
        return engine

    async def set_state(self, engine: str, state: Literal["active", "cordoned", "draining"]) -> None:
        changed = replace(self.state.catalog.engines[engine], state=state, drain=None)
        await self.commit(Change("engine", engine, dump(changed)))

    async def add_adapter(self, name: str, path: Path, *, number: int = 1, rank: int = 8) -> Version:
        version = Version(
            adapter=name,
            number=number,
            digest="sha256:" + secrets.token_hex(32),
            engine_name="fl-" + secrets.token_hex(10),
            path=str(path),
            base_model="base",
            rank=rank,
            size_bytes=1,
            source=str(path),
            created=time.time_ns() // 1000,
        )
        await self.commit(
            Change("version", version.id, dump(version)),
            Change("adapter", name, dump(Adapter(name, live=number, latest=number))),
        )
        return version

    async def shipped(self) -> None:
        """Until the ledger has every record of this worker so far. One flush gives up after three seconds, which
        a busy machine may need for two."""
        await until(self.state.meter.flush)

    async def usage(self, tenant: str | None = None) -> list[Any]:
        """The ledger's records so far, oldest first."""
        await self.shipped()
        page = await asyncio.to_thread(
            self.state.ledger.usage, start=0, end=1 << 62, tenant=tenant, limit=10_000
        )
        return list(page)


class Load:
    """Calls of acme's adapter `support`, none tried twice. Mutable: what was answered."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._stop = False
        self.answered: list[str] = []
        """Their request ids."""

    async def run(self) -> None:
        """One after the other, until `stop`. Raises what a client raises."""
        async with self._gateway.client("acme") as client:
            while not self._stop:
                answer = await client.chat.completions.with_raw_response.create(
                    model="support", messages=[{"role": "user", "content": "x"}], max_tokens=2
                )
                self.answered.append(answer.headers["x-request-id"])

    async def more(self, count: int) -> None:
        enough = len(self.answered) + count
        await until(lambda: len(self.answered) >= enough)

    def stop(self) -> None:
        self._stop = True


@contextlib.asynccontextmanager
async def running_gateway(
    state_dir: Path, redis_url: str, prefix: str, **settings: Any
) -> AsyncIterator[Gateway]:
    """Its deadlines are longer than a busy machine may stand still; tests of deadlines set their own."""
    defaults = {
        "placement_timeout": PATIENCE_S, "probe_interval": 0.2, "probe_timeout": 10.0, "shutdown_grace": 5.0,
        "slow_start": 0.0, "placement_interval": 0.0, "api_docs": True,
        "separate_ledgers": True, "operator_key": OPERATOR_KEY,
        "ledger_warm_up": False, "failed_keys_per_address": 0, "base_model_dirs": str(state_dir.parent),
        "keep_alive_interval": 0.0,  # a stream that began with a comment does not name its engine
    }  # fmt: skip
    if "ledger_url" not in settings:
        await asyncio.to_thread(_put_ledger, state_dir)
    app = create_app(
        Settings(
            state_dir=state_dir,
            redis_url=redis_url,
            redis_prefix=prefix,
            **(defaults | settings),
        )
    )
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="on",
        timeout_graceful_shutdown=5, http=ClientConnection, headers=HEADERS, proxy_headers=False,
    )  # fmt: skip
    server = Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    umask = os.umask(0o077)  # as `florin serve` sets it for its process
    # Redis, too: in production a call may take two seconds.
    with patch.dict(RedisServer.__init__.__kwdefaults__, timeout=PATIENCE_S):
        task = asyncio.create_task(server._serve())
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the gateway did not start")
            await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    state = app.api.state.florin
    state.lifecycle.loop_watch.note = lambda late, busy: None  # engines and clients work in this loop, too
    try:
        yield Gateway(app, f"http://127.0.0.1:{port}", server)
    finally:
        server.stop()
        done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
        os.umask(umask)
        if not done:
            for t in asyncio.all_tasks():
                t.print_stack()
            raise RuntimeError("the gateway did not stop")
        task.result()


def _put_ledger(state_dir: Path) -> None:
    """So that a gateway of this process's does not migrate its own; those of `florin serve` do."""
    if not state_dir.exists():
        put_sqlite(state_dir / "ledger.db").chmod(0o600)


def fake_adapter(directory: Path) -> Path:
    """A directory that the mock engine takes for an adapter."""
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(b"")
    return directory


def engine_document(name: str, url: str = "http://127.0.0.1:1", **fields: Any) -> Engine:
    """The document of an engine with two slots of rank 8."""
    fields = {"gpu_type": "h100", "slots": 2, "max_rank": 8, "base_model": "base"} | fields
    return Engine(name=name, url=url, **fields)
