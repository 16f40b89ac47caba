"""A large installation: 64 engines, 300 adapters of 40 customers, each used in the sample month."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adapters.model import Adapter, BaseModel, Engine, Version, dump
from adapters.store.protocol.registry import Change
from gateway.costs.rollups.rollup import roll
from gateway.costs.sample_month import month as sample_month
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.records import record_id
from gateway.tenants import directory
from gateway.units import HOUR

ENGINES, ADAPTERS, TENANTS = 64, 300, 40
BASE = sample_month.MODEL


def tenant_of(number: int) -> str:
    return f"customer-{number % TENANTS:02}"


def adapter_of(number: int) -> str:
    return f"{tenant_of(number)}/assistant-{number:03}"


def request_of(number: int) -> str:
    return f"req-crowd-{number:03}"


def changes(urls: Sequence[str], now: int) -> list[Change]:
    """Changes that write all documents. The engines share these servers. `now`: Unix microseconds."""
    engines = [
        Engine(
            f"gpu-{n:02}",
            urls[n % len(urls)],
            BASE,
            "H100" if n % 3 else "L40S",
            slots=8,
            max_rank=64,
            registered=now,
        )
        for n in range(ENGINES)
    ]
    tenants = [directory.Tenant(tenant_of(n), False, now) for n in range(TENANTS)]
    versions = [
        Version(
            adapter=adapter_of(n),
            number=1,
            digest=f"sha256:{n:064x}",
            engine_name=f"fl-{n:020x}",
            path="/nowhere",
            base_model=BASE,
            rank=8,
            size_bytes=90_000_000 + n,
            source=f"s3://fine-tunes/assistant-{n:03}",
            created=now,
        )
        for n in range(ADAPTERS)
    ]
    return [
        Change("base", BASE, dump(BaseModel(BASE))),
        *(Change("engine", engine.name, dump(engine)) for engine in engines),
        *(Change("tenant", tenant.name, directory.dump(tenant)) for tenant in tenants),
        *(Change("version", version.id, dump(version)) for version in versions),
        *(Change("adapter", v.adapter, dump(Adapter(v.adapter, live=1, latest=1))) for v in versions),
    ]


def use(ledger: Path) -> None:
    """One request of each adapter in the sample month's ledger."""
    opened = Ledger(f"sqlite:///{ledger}")
    some = [record for _, record in zip(range(ADAPTERS), sample_month.records(), strict=False)]
    opened.insert(
        [
            record._replace(
                id=record_id(request_of(n), 1),
                request_id=request_of(n),
                tenant=tenant_of(n),
                adapter=adapter_of(n),
            )
            for n, record in enumerate(some)
        ]
    )
    roll(opened, sample_month.MONTH.end + HOUR)
    opened.close()
