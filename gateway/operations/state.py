"""Everything that a worker holds, as operations and routes are given it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from adapters.errors import StoreUnavailableError
from adapters.placement.engine_client import EngineClient
from adapters.placement.residency import Residency
from adapters.registry.artifacts import ArtifactStore
from adapters.registry.catalog import Catalog
from adapters.registry.registration import Registrar
from adapters.store.feed import Follower
from adapters.store.protocol import Change, Store
from adapters.store.snapshot_writer import SnapshotWriter
from gateway.config import Settings
from gateway.costs.export.spool import Spool
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.lifecycle import Lifecycle
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.meter import Meter
from gateway.observability.conditions import Conditions
from gateway.observability.metrics import Metrics
from gateway.routing.hang_detection import HangDetector
from gateway.routing.pool import Pool
from gateway.routing.prewarming import Prewarmer
from gateway.routing.router import Router
from gateway.runtime.clock import Clock
from gateway.runtime.transport_security import TransportSecurity
from gateway.tenants.directory import Directory

READ_YOUR_WRITES_SECONDS = 2.0


@dataclass(slots=True)
class State:
    """Everything a worker holds, built by the lifespan in `gateway.app`."""

    settings: Settings
    store: Store
    directory: Directory
    catalog: Catalog
    residency: Residency
    follower: Follower
    control: EngineClient
    registrar: Registrar
    artifacts: ArtifactStore
    pool: Pool
    hangs: HangDetector
    router: Router
    warmer: Prewarmer
    meter: Meter
    ledger: Ledger
    ledger_process: LedgerProcess
    metrics: Metrics
    lifecycle: Lifecycle
    uploads: asyncio.Semaphore
    """Places for uploads to this worker."""
    spool: Spool
    security: TransportSecurity
    conditions: Conditions
    keeper: SnapshotWriter
    clock: Clock
    readiness_asked: float | None = None
    """When somebody last asked whether this worker is ready, monotonic."""

    async def commit(self, *changes: Change) -> None:
        """Commit, and wait until this worker has heard of it, so that a caller reads its own writes."""
        await self.settle(await self.store.commit(changes))

    async def settle(self, seq: int) -> None:
        if not await self.follower.wait_for(seq, READ_YOUR_WRITES_SECONDS):
            raise StoreUnavailableError("The change is stored, but this worker has not heard of it yet.")
