"""What the routes of the admin and finance side get injected: the worker's state, and who is asking."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from adapters.artifacts import ArtifactStore
from adapters.catalog import Catalog
from adapters.engine_control import EngineControl
from adapters.errors import StoreUnavailableError
from adapters.feed import Follower
from adapters.keeper import Keeper
from adapters.registration import Registrar
from adapters.residency import Residency
from adapters.store import Change, Store
from gateway.clock import Clock
from gateway.conditions import Conditions
from gateway.config import Settings
from gateway.costs.books import Books
from gateway.costs.export.spool import Spool
from gateway.errors import FlorinError
from gateway.exchange import Exchange
from gateway.lifecycle import Lifecycle, authenticate
from gateway.metering.ledger import Ledger
from gateway.metering.meter import Meter
from gateway.metrics import Metrics
from gateway.routing.hangs import HangWatch
from gateway.routing.pool import Pool
from gateway.routing.router import Router
from gateway.routing.warmer import Warmer
from gateway.tenants.directory import Directory, Key, Role
from gateway.transport_security import TransportSecurity

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
    control: EngineControl
    registrar: Registrar
    artifacts: ArtifactStore
    pool: Pool
    hangs: HangWatch
    router: Router
    warmer: Warmer
    meter: Meter
    ledger: Ledger
    books: Books
    metrics: Metrics
    lifecycle: Lifecycle
    uploads: asyncio.Semaphore
    """Places for uploads to this worker."""
    spool: Spool
    security: TransportSecurity
    conditions: Conditions
    keeper: Keeper
    clock: Clock
    readiness_asked: float | None = None
    """When somebody last asked whether this worker is ready, monotonic."""

    async def commit(self, *changes: Change) -> None:
        """Commit, and wait until this worker has heard of it, so that a caller reads its own writes."""
        await self.settle(await self.store.commit(changes))

    async def settle(self, seq: int) -> None:
        if not await self.follower.wait_for(seq, READ_YOUR_WRITES_SECONDS):
            raise StoreUnavailableError("The change is stored, but this worker has not heard of it yet.")


def get_state(request: Request) -> State:
    return cast("State", request.app.state.florin)


StateDep = Annotated[State, Depends(get_state)]


def _require(request: Request, state: State, *roles: Role) -> Key:
    exchange = Exchange(request.scope, request.receive, _no_send)
    return check_role(authenticate(exchange, state.directory, state.follower), *roles)


def check_role(key: Key, *roles: Role) -> Key:
    if key.role not in roles:
        raise FlorinError(
            "insufficient_role", f"This needs a key of role {' or '.join(roles)}; this one's is {key.role}."
        )
    return key


def require_operator(request: Request, state: StateDep) -> Key:
    return _require(request, state, Role.OPERATOR)


def require_host(request: Request, state: StateDep) -> Key:
    """An operator's key, or an engine's own. Where the path names an engine, it must be that one; what else
    an engine's key may not do, the route refuses."""
    key = _require(request, state, Role.OPERATOR, Role.ENGINE)
    named = request.path_params.get("name")
    if named is not None:
        check_own_engine(key, named)
    return key


def check_own_engine(key: Key, engine: str) -> None:
    """Raises FlorinError for the key of another engine, whether or not there is one of that name."""
    if key.role is Role.ENGINE and key.engine != engine:
        raise FlorinError("insufficient_role", f"This key is for engine {key.engine} and no other.")


def require_enrolment(request: Request, state: StateDep) -> Key:
    return _require(request, state, Role.ENROLMENT)


def require_metrics(request: Request, state: StateDep) -> Key:
    return _require(request, state, Role.METRICS, Role.OPERATOR)


def require_finance(request: Request, state: StateDep) -> Key:
    """Analysts and operators see everything; a tenant's key is let in too, and sees its own rows: the route
    restricts by `key.tenant` when `key.role` is tenant."""
    return _require(request, state, Role.FINANCE, Role.OPERATOR, Role.TENANT)


async def _no_send(message: object) -> None:
    raise AssertionError(message)


OperatorKey = Annotated[Key, Depends(require_operator)]
HostKey = Annotated[Key, Depends(require_host)]
EnrolmentKey = Annotated[Key, Depends(require_enrolment)]
MetricsKey = Annotated[Key, Depends(require_metrics)]
FinanceKey = Annotated[Key, Depends(require_finance)]


def actor_of(key: Key) -> str:
    """Who acts, as the audit names it."""
    return "bootstrap" if key.id == "bootstrap" else f"key:{key.id}"


def actor(key: OperatorKey) -> str:
    return actor_of(key)


Actor = Annotated[str, Depends(actor)]
