"""/admin/v1/placement and /admin/v1/explain"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from adapters.errors import NotFoundError, StoreUnavailableError
from adapters.model import AdapterName, Engine
from adapters.placement.policy import PlacementDecision
from gateway.api.admin.common import Operator
from gateway.api.admin.engines import hang, health
from gateway.api.dependencies import StateDep
from gateway.operations.state import State
from gateway.operations.transaction import Json

router = APIRouter(tags=["placement"], dependencies=[Operator])


@router.get("/placement")
async def show_placement(state: StateDep) -> Json:
    """Engines and what is assigned to their slots, most recently used first."""
    engines = [e for _, e in sorted(state.catalog.engines.items())]
    return {"data": await asyncio.gather(*(_engine(state, e) for e in engines))}


@router.get("/explain/{tenant}/{name}")
async def explain(tenant: str, name: str, state: StateDep) -> Json:
    """Where a request for the adapter's live version would go now, and why."""
    adapter = AdapterName(tenant, name)
    target = state.catalog.resolve(tenant, str(adapter), base_access=False)
    if target is None:
        raise NotFoundError(f"There is no adapter {str(adapter)[:140]!r}.")
    decision = state.router.explain(target)
    candidates = [
        {
            "engine": s.engine,
            "health": health(state, s.engine),
            "eligible": s.cost is not None,
            "cost_ms": None if s.cost is None else round(s.cost, 1),
            "reason": s.reason,
        }
        for s in decision.scores
    ]
    return {
        "adapter": str(adapter),
        "version": target.label,
        "decision": {
            "action": "none" if decision.engine is None else "load" if decision.load else "serve",
            "engine": decision.engine,
            "reason": _reason(decision),
            "candidates": candidates,
        },
    }


def _reason(decision: PlacementDecision) -> str:
    if decision.engine is not None:
        return next(s.reason for s in decision.scores if s.engine == decision.engine)
    return "no engine of the fleet can serve it" if decision.scores else "the fleet has no engines"


async def _engine(state: State, engine: Engine) -> Json:
    ages, leases = await _usage(state, engine)
    slots = state.residency.slots(engine.name)
    placements = [
        _slot(state, engine, version, ages.get(version), leases.get(version, 0)) | {"state": slots[version]}
        for version in sorted(slots, key=lambda v: (ages.get(v, 1 << 62), v))
    ]
    return {
        "engine": engine.name,
        "gpu_type": engine.gpu_type,
        "health": health(state, engine.name),
        "hang": hang(state, engine.name),
        "slots": engine.slots,
        "placements": placements,
    }


async def _usage(state: State, engine: Engine) -> tuple[dict[str, int], dict[str, int]]:
    """Ages in ms and leases by version; neither while Redis is away."""
    if not state.follower.connected:
        return {}, {}
    try:
        return await state.store.recency(engine.name), await state.store.leases(engine.name)
    except StoreUnavailableError:
        return {}, {}


def _slot(state: State, engine: Engine, version: str, age_ms: int | None, leases: int) -> Json:
    """`in_flight`: of all workers, as they reported last; this worker's own as of now."""
    known = state.catalog.by_engine_name.get(version)
    seen = state.pool.state(engine.name)
    use = seen.uses.get(version) if seen else None
    return {
        "version": known.id if known else f"{version} (removed)",
        "in_flight": max(use.in_flight if use else 0, leases),
        "idle_seconds": None if age_ms is None else round(age_ms / 1000, 1),
    }
