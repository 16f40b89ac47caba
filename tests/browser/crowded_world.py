"""A large installation: 64 engines, 300 adapters of 40 customers, each used in the sample month."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from adapters.model import Adapter, BaseModel, Version, dump
from adapters.store.embedded import EmbeddedValkey
from adapters.store.protocol.registry import Change
from gateway.costs.periods import HOUR
from gateway.costs.rollups.rollup import roll
from gateway.metering.ledger.ledger import Ledger
from gateway.tenants import directory
from loadtests.ledger import sample
from loadtests.mock_engine import MockEngine
from tests.browser.world import World, put_ledger
from tests.support.harness import engine_document, running_gateway

ENGINES, ADAPTERS, TENANTS = 64, 300, 40
_BATCH = 50


def _changes(url: str, now: int) -> list[Change]:
    """Of all documents; engines share one server."""
    base = sample.MODEL
    engines = [
        engine_document(f"gpu-{n:02}", url, slots=8, base_model=base, gpu_type="H100" if n % 3 else "L40S")
        for n in range(ENGINES)
    ]
    tenants = [directory.Tenant(f"customer-{n:02}", False, now) for n in range(TENANTS)]
    versions = [
        Version(
            adapter=f"customer-{n % TENANTS:02}/assistant-{n:03}",
            number=1,
            digest=f"sha256:{n:064x}",
            engine_name=f"fl-{n:020x}",
            path="/nowhere",
            base_model=base,
            rank=8,
            size_bytes=90_000_000 + n,
            source=f"s3://fine-tunes/assistant-{n:03}",
            created=now,
        )
        for n in range(ADAPTERS)
    ]
    return [
        Change("base", base, dump(BaseModel(base))),
        *(Change("engine", engine.name, dump(engine)) for engine in engines),
        *(Change("tenant", tenant.name, directory.dump(tenant)) for tenant in tenants),
        *(Change("version", version.id, dump(version)) for version in versions),
        *(Change("adapter", v.adapter, dump(Adapter(v.adapter, live=1, latest=1))) for v in versions),
    ]


def _use(path: Path) -> None:
    """One hour's requests of the sample month, of every adapter."""
    ledger = Ledger(f"sqlite:///{path}")
    some = [record for _, record in zip(range(ADAPTERS), sample.records(), strict=False)]
    ledger.insert(
        [
            replace(
                record,
                id=f"{n:032x}",
                request_id=f"req-crowd-{n:03}",
                tenant=f"customer-{n % TENANTS:02}",
                adapter=f"customer-{n % TENANTS:02}/assistant-{n:03}",
            )
            for n, record in enumerate(some)
        ]
    )
    roll(ledger, sample.MONTH.end + HOUR)
    ledger.close()


@contextlib.asynccontextmanager
async def crowded_world(valkey: EmbeddedValkey, prefix: str, tmp: Path, ledger: Path) -> AsyncIterator[World]:
    """`ledger`: the sample month's, of which it gets a copy."""
    await asyncio.to_thread(_use, put_ledger(ledger, tmp / "state"))
    async with (
        MockEngine(base=sample.MODEL) as engine,
        running_gateway(tmp / "state", valkey.url, prefix, probe_interval=10.0) as gateway,
    ):
        world = World(gateway, {"gpu-00": engine}, tmp)
        changes = _changes(engine.url, time.time_ns() // 1000)
        for start in range(0, len(changes), _BATCH):
            await gateway.commit(*changes[start : start + _BATCH])
        await world.add_key("finance", "finance")
        await world.add_key("acme", "tenant-admin", "customer-01")
        yield world
