"""What a worker holds, as operations and routes receive it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adapters.placement.engine_client import EngineClient
from adapters.placement.placement_log import PlacementLog
from adapters.placement.residency import Residency
from adapters.registry.artifacts import ArtifactStore
from adapters.registry.catalog import Catalog
from adapters.registry.registration import Registrar
from adapters.store.feed import Follower
from adapters.store.protocol import Store
from adapters.store.snapshot_writer import SnapshotWriter
from gateway.admission.owner_queue import OwnerQueue
from gateway.batches.runner import BatchRunner
from gateway.config import Settings
from gateway.costs.credit_limits import CreditLimits
from gateway.costs.export.spool import Spool
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.price_list import PriceList
from gateway.evaluations.runner import EvaluationRunner
from gateway.lifecycle import Lifecycle
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.meter import Meter
from gateway.observability.conditions import Conditions
from gateway.observability.metrics import Metrics
from gateway.operations.known_currency import KnownCurrency
from gateway.routing.engine_deaths import DeathTracker
from gateway.routing.engine_demand import EngineDemand
from gateway.routing.hang_detection import HangDetector
from gateway.routing.pool import Pool
from gateway.routing.prewarming import Prewarmer
from gateway.routing.router import Router
from gateway.runtime.clock import Clock
from gateway.runtime.gateways import Gateways
from gateway.runtime.transport_security import TransportSecurity
from gateway.tenants.bootstrap_key import BootstrapKeyFile
from gateway.tenants.directory import Directory
from gateway.tenants.sessions import Sessions

if TYPE_CHECKING:  # it imports cryptography, which only installations with an issuer need
    from gateway.tenants.host_tokens import HostTokens
    from gateway.tenants.people.verification import People


@dataclass(frozen=True, slots=True)
class Intake:
    """Limits how many adapters this worker takes in at a time."""

    uploads: OwnerQueue
    """Operators' uploads."""
    tenant_uploads: OwnerQueue
    """Uploads of tenants' own administrators."""
    tenant_registrations: OwnerQueue
    """Their registrations: fetching, checking and storing."""


@dataclass(slots=True)
class State:
    """Everything a worker holds, built by `gateway.composition`."""

    settings: Settings
    store: Store
    gateways: Gateways
    directory: Directory
    bootstrap_key: BootstrapKeyFile | None
    catalog: Catalog
    residency: Residency
    placement_log: PlacementLog
    follower: Follower
    engine_client: EngineClient
    registrar: Registrar
    artifacts: ArtifactStore
    pool: Pool
    engine_demand: EngineDemand
    hangs: HangDetector
    router: Router
    deaths: DeathTracker
    prewarmer: Prewarmer
    meter: Meter
    ledger: Ledger
    batches: BatchRunner
    evaluations: EvaluationRunner
    ledger_process: LedgerProcess
    metrics: Metrics
    lifecycle: Lifecycle
    prices: PriceList
    credit_limits: CreditLimits
    intake: Intake
    spool: Spool
    security: TransportSecurity
    conditions: Conditions
    snapshot_writer: SnapshotWriter
    clock: Clock
    sessions: Sessions
    people: People | None
    """None: nobody can sign in, only keys are accepted."""
    host_tokens: HostTokens | None
    """None: engine hosts enrol with Florin's own tokens only."""
    readiness_queried_at: float | None = None
    """When /readyz was last queried, monotonic seconds."""
    currency: KnownCurrency = field(default_factory=KnownCurrency)
