"""What the gateway says of the objects behind resources, as their statuses: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from adapters.wording import counted
from gateway.fleet.adapters.schemas.adapters import Adapter
from gateway.fleet.engines.schemas.engines import Engine
from gateway.kubernetes.operations.definitions import (
    AdapterStatus,
    Drift,
    Member,
    PoolResource,
    PoolStatus,
    Status,
    TenantStatus,
)
from gateway.kubernetes.resource import Finding, Resource, conditions, pascal
from gateway.tenants.schemas.tenants import Tenant

NOTHING = Finding("NotApplied", "It is not in the registry.", "reconciling", synced=False)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What there is, at one moment, by id."""

    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    engines: Sequence[Engine] = ()

    def finding(self, resource: Resource) -> Finding:
        """How the object behind a resource is served."""
        if resource.kind == "Tenant":
            tenant = self.tenants.get(resource.id)
            return NOTHING if tenant is None else Finding("Applied", "As the spec says.")
        adapter = self.adapters.get(resource.id)
        return NOTHING if adapter is None else _of_adapter(adapter)


def _of_adapter(adapter: Adapter) -> Finding:
    called = {adapter.live, adapter.canary.version if adapter.canary else None}
    problems = [problem for problem in adapter.trouble if problem.version in called]
    if problems:
        message = " ".join(f"{problem.version}: {problem.reason}" for problem in problems)
        return Finding(pascal(problems[0].state), message, "stalled")
    holders = _holders(adapter)
    if len(holders) < (fewest := adapter.min_replicas or 0):
        message = f"{adapter.live} is on {counted(len(holders), 'engine')}; minReplicas asks for {fewest}."
        return Finding("TooFewReplicas", message, "reconciling")
    if holders:
        return Finding("Applied", f"{adapter.live} is on {', '.join(holders[:5])}.")
    return Finding("Applied", f"{adapter.live} is loaded when it is called.")


def _holders(adapter: Adapter) -> list[str]:
    """Engines that hold the live version."""
    placed = adapter.placed or ()
    return sorted({p.engine for p in placed if p.version == adapter.live and p.state == "resident"})


def status(
    resource: Resource,
    finding: Finding,
    fleet: Fleet,
    *,
    now: str,
    drift: tuple[str, ...] = (),
    corrected: bool = False,
) -> Status:
    """`drift`: what differed; empty: the last that is known stays."""
    shared: dict[str, Any] = {
        "observed_generation": resource.generation,
        "conditions": conditions(resource.conditions, finding, resource.generation, now),
        "id": resource.id,
        "drift": resource.status.get("drift"),
    }
    if drift and (corrected or not _same(drift, shared["drift"])):
        shared["drift"] = Drift(time=now, changes=list(drift), corrected=corrected)
    if resource.kind == "Tenant":
        tenant = fleet.tenants.get(resource.id)
        own = [name for name in fleet.adapters if name.startswith(f"{resource.id}/")]
        state = "Suspended" if tenant and tenant.suspended else "Active"
        return TenantStatus.model_validate(shared | {"state": _state(finding, state), "adapters": len(own)})
    adapter = fleet.adapters.get(resource.id)
    holders = _holders(adapter) if adapter else []
    canary = adapter.canary if adapter else None
    return AdapterStatus.model_validate(
        shared
        | {
            "state": _state(finding, "Loaded" if holders else "Unloaded"),
            "live": adapter.live if adapter else None,
            "canary": f"{canary.version} at {canary.weight} %" if canary else None,
            "base_model": adapter.base_model if adapter else None,
            "engines": len(holders),
        }
    )


def _same(drift: tuple[str, ...], known: Mapping[str, Any] | None) -> bool:
    return known is not None and not known["corrected"] and list(drift) == known["changes"]


def _state(finding: Finding, state: str) -> str:
    return state if finding.phase == "ready" else finding.reason


def pool_status(resource: Resource, pool: PoolResource, fleet: Fleet, *, now: str) -> PoolStatus:
    members = [engine for engine in fleet.engines if _belongs(engine, pool)]
    serving = [e for e in members if e.health == "up" and e.state != "draining" and not e.stopping]
    message = f"{len(serving)} of {counted(len(members), 'engine')} can take requests; {pool.min_ready} must."
    if len(serving) >= pool.min_ready:
        finding = Finding("EnoughEngines", message)
    else:
        finding = Finding("TooFewEngines", message, "reconciling")
    return PoolStatus(
        observed_generation=resource.generation,
        conditions=conditions(resource.conditions, finding, resource.generation, now),
        state="Ready" if finding.phase == "ready" else "Waiting",
        engines=len(members),
        ready=len(serving),
        slots=sum(engine.slots for engine in serving),
        members=[
            Member(name=e.name, state="stopping" if e.stopping else e.state, health=e.health) for e in members
        ],
    )


def invalid_pool(resource: Resource, error: ValidationError, *, now: str) -> PoolStatus:
    """No schema of Kubernetes says all that the models check."""
    mistake = error.errors()[0]
    message = f"{'.'.join(map(str, mistake['loc']))}: {mistake['msg'].removeprefix('Value error, ')}."
    finding = Finding("InvalidSpec", message, "stalled", synced=False)
    return PoolStatus(
        observed_generation=resource.generation,
        conditions=conditions(resource.conditions, finding, resource.generation, now),
        state=finding.reason,
        engines=0,
        ready=0,
        slots=0,
        members=[],
    )


def _belongs(engine: Engine, pool: PoolResource) -> bool:
    return (
        (pool.names is None or fnmatchcase(engine.name, pool.names))
        and pool.base in (None, engine.base)
        and pool.gpu_type in (None, engine.gpu_type)
        and (pool.labels or {}).items() <= engine.labels.items()
    )
