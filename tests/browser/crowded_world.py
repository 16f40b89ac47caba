"""A large installation: 64 engines, 300 adapters of 40 customers, each used in the sample month."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from adapters.store.embedded import EmbeddedValkey
from loadtests.console import crowd
from loadtests.mock_engine import MockEngine
from tests.browser.world import World, put_ledger
from tests.support.harness import running_gateway

_BATCH = 50


@contextlib.asynccontextmanager
async def crowded_world(valkey: EmbeddedValkey, prefix: str, tmp: Path, ledger: Path) -> AsyncIterator[World]:
    """`ledger`: the sample month's, of which it gets a copy."""
    await asyncio.to_thread(crowd.use, put_ledger(ledger, tmp / "state"))
    async with (
        MockEngine(base=crowd.BASE) as engine,
        running_gateway(tmp / "state", valkey.url, prefix, probe_interval=10.0) as gateway,
    ):
        world = World(gateway, {"gpu-00": engine}, tmp)
        changes = crowd.changes([engine.url], time.time_ns() // 1000)
        for start in range(0, len(changes), _BATCH):
            await gateway.commit(*changes[start : start + _BATCH])
        await world.add_key("finance", "finance")
        await world.add_key("acme", "tenant-admin", "customer-01")
        yield world
