"""/admin/v1/placement and /admin/v1/explain"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Response

from adapters.errors import NotFoundError, StoreUnavailableError
from adapters.model import AdapterName, Engine
from adapters.placement.placement_log import KEPT
from adapters.placement.scheduling.view import Score
from gateway.api.admin.common import Operator, as_it_is
from gateway.api.admin.engines import hang, health
from gateway.api.dependencies import StateDep
from gateway.operations.placement_changes import explained
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.routing.decision_log import RECORDS

_MOVES = 20

router = APIRouter(tags=["placement"], dependencies=[Operator])


@router.get("/placement", response_model=None)
async def show_placement(
    state: StateDep,
    engine: Annotated[str | None, Query(max_length=200, description="Only this engine.")] = None,
) -> Response:
    """The engines with the versions placed there, most recently used first. Those in the state `cached` are
    in CPU memory; all others hold a slot."""
    engines = [e for name, e in sorted(state.catalog.engines.items()) if engine in {None, name}]
    use = await _use(state, [one.name for one in engines])
    return as_it_is({"data": [_engine(state, one, *use.get(one.name, ({}, {}))) for one in engines]})


@router.get("/placement/changes")
async def show_changes(
    state: StateDep,
    engine: Annotated[str | None, Query(max_length=200, description="Only this engine's.")] = None,
    limit: Annotated[int, Query(ge=1, le=KEPT)] = 100,
) -> Json:
    """The latest loads, evictions and other changes of the placement, newest first. Each worker remembers the
    last 500 since its start. `kind`: `loading`, `loaded`, `not_loaded`, `activated` (from CPU memory),
    `evicted` (out of its slot, still in CPU memory), `unloaded`, `leaving` and `kept` (see `leaving` in the
    placement), `lost` (with its engine's process). `seconds`: how long the load took. `why`: for whom a slot
    was given up, or what the planner said; null: a request or an operator wanted it."""
    moves = await _recorded_moves(state)
    told = explained(state.placement_log.latest(), moves)
    return {"data": [change for change in told if engine in {None, change["engine"]}][:limit]}


@router.get("/explain/{tenant}/{name}")
async def explain(tenant: str, name: str, state: StateDep) -> Json:
    """Where a request for the adapter's live version would go now, and why. `moves`: what the planner has
    moved of the adapter lately, newest first."""
    adapter = AdapterName(tenant, name)
    target = state.catalog.resolve(tenant, str(adapter), base_access=False)
    if target is None:
        raise NotFoundError(f"There is no adapter {str(adapter)[:140]!r}.")
    scores = state.router.scores(target, state.directory.requires(tenant))
    best = next((s for s in scores if s.cost is not None), None)
    return {
        "adapter": str(adapter),
        "version": target.label,
        "decision": {
            "action": best.action if best else "none",
            "engine": best.engine if best else None,
            "reason": best.reason if best else _nowhere(scores),
            "candidates": [_candidate(state, score) for score in scores],
        },
        "moves": await _moves(state, str(adapter)),
    }


@router.get("/explain/{request_id}")
async def explain_request(request_id: str, state: StateDep) -> Json:
    """The scheduling decisions that were made for a recent request: one for each attempt. If finding the
    engine took a millisecond or more, `search_ms` says how long, of which `queue_ms` waiting for the
    request's turn and `load_ms` for an adapter load."""
    decisions = await asyncio.to_thread(state.lifecycle.delivery.decisions.find, request_id[:100])
    if not decisions:
        raise NotFoundError(
            f"No decision is known for request {request_id[:100]!r}: each worker of this host keeps its "
            f"latest {RECORDS:,}."
        )
    return {"request_id": request_id, "data": decisions}


async def _moves(state: State, adapter: str) -> list[Json]:
    """Empty while Redis is unavailable."""
    moves = await _recorded_moves(state)
    return [move for move in moves if move["version"].startswith(f"{adapter}@")][:_MOVES]


async def _recorded_moves(state: State) -> list[Json]:
    """Empty while Redis is unavailable."""
    if not state.follower.connected:
        return []
    try:
        return [orjson.loads(record) for record in await state.store.moves()]
    except StoreUnavailableError:
        return []


def _candidate(state: State, score: Score) -> Json:
    return {
        "engine": score.engine,
        "health": health(state, score.engine),
        "eligible": score.cost is not None,
        "action": score.action,
        "cost_ms": None if score.cost is None else round(score.cost, 1),
        "terms": {name: round(ms, 1) for name, ms in score.terms},
        "reason": score.reason,
    }


def _nowhere(scores: list[Score]) -> str:
    return "no engine of the fleet can serve it" if scores else "the fleet has no engines"


def _engine(state: State, engine: Engine, ages: Mapping[str, int], leases: Mapping[str, int]) -> Json:
    placed = state.residency.placed(engine.name)
    placements = [
        _slot(state, engine, version, ages.get(version), leases.get(version, 0)) | {"state": placed[version]}
        for version in sorted(placed, key=lambda v: (ages.get(v, 1 << 62), v))
    ]
    return {
        "engine": engine.name,
        "gpu_type": engine.gpu_type,
        "health": health(state, engine.name),
        "hang": hang(state, engine.name),
        "slots": engine.slots,
        "cpu_slots": engine.cpu_slots,
        "placements": placements,
    }


async def _use(state: State, engines: Sequence[str]) -> Mapping[str, tuple[dict[str, int], dict[str, int]]]:
    """Ages in ms and leases, by version; empty while Redis is unavailable."""
    if not state.follower.connected:
        return {}
    try:
        return await state.store.use(engines)
    except StoreUnavailableError:
        return {}


def _slot(state: State, engine: Engine, version: str, age_ms: int | None, leases: int) -> Json:
    """`in_flight`: this worker's requests now, or those that all workers last reported."""
    known = state.catalog.by_engine_name.get(version)
    seen = state.pool.state(engine.name)
    use = seen.uses.get(version) if seen else None
    return {
        "version": known.id if known else f"{version} (removed)",
        "in_flight": max(use.in_flight if use else 0, leases),
        "idle_seconds": None if age_ms is None else round(age_ms / 1000, 1),
        "pinned": version in state.catalog.pins,
    }
