"""/admin/v1/placement and /admin/v1/explain"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from adapters import model
from adapters.errors import NotFoundError, StoreUnavailableError
from adapters.model import AdapterName
from adapters.placement.placement_log import KEPT
from adapters.placement.scheduling.view import Score
from gateway.api.admin_requests import Operator, as_it_is
from gateway.api.dependencies import StateDep
from gateway.fleet.engines.routes.engines import hang, health
from gateway.fleet.placement.operations import explained
from gateway.fleet.placement.schemas import (
    Candidate,
    Choice,
    Decision,
    Decisions,
    EnginePlacement,
    Explanation,
    PlacedVersion,
    PlacementChange,
    PlannerMove,
)
from gateway.operations.state import State
from gateway.routing.decision_log import RECORDS
from gateway.schemas.base import Listed
from gateway.tenants.engine_requirements import engine_requirements

_MOVES = 20

router = APIRouter(tags=["placement"], dependencies=[Operator])


@router.get("/placement", response_model=Listed[EnginePlacement])
async def show_placement(
    state: StateDep,
    engine: Annotated[str | None, Query(max_length=200, description="Only this engine.")] = None,
) -> Response:
    """The engines with the versions placed there, most recently used first."""
    engines = [shown for name, shown in sorted(state.catalog.engines.items()) if engine in {None, name}]
    use = await _use(state, [shown.name for shown in engines])
    placements = (_placement(state, shown, *use.get(shown.name, ({}, {}))) for shown in engines)
    return as_it_is(Listed[EnginePlacement](data=tuple(placements)))


@router.get("/placement/changes")
async def show_changes(
    state: StateDep,
    engine: Annotated[str | None, Query(max_length=200, description="Only this engine's.")] = None,
    limit: Annotated[int, Query(ge=1, le=KEPT)] = 100,
) -> Listed[PlacementChange]:
    """The latest loads, evictions and other changes of the placement, newest first. Each worker remembers the
    last 500 since its start."""
    changes = [change for change in state.placement_log.latest() if engine in {None, change.engine}][:limit]
    return Listed(data=tuple(explained(changes, await _recorded_moves(state))))


@router.get("/explain/{tenant}/{name}")
async def explain(tenant: str, name: str, state: StateDep) -> Explanation:
    """Where a request for the adapter's live version would go now, and why."""
    adapter = AdapterName(tenant, name)
    target = state.catalog.resolve(tenant, str(adapter), base_access=False)
    if target is None:
        raise NotFoundError(f"There is no adapter {str(adapter)[:140]!r}.")
    scores = state.router.scores(target, engine_requirements(state.directory, state.catalog, tenant))
    best = next((s for s in scores if s.cost is not None), None)
    moves = [move for move in await _recorded_moves(state) if move.version.startswith(f"{adapter}@")]
    return Explanation(
        adapter=str(adapter),
        version=target.label,
        decision=Choice(
            action=best.action if best else "none",
            engine=best.engine if best else None,
            reason=best.reason if best else _nowhere(scores),
            candidates=tuple(_candidate(state, score) for score in scores),
        ),
        moves=tuple(moves[:_MOVES]),
    )


@router.get("/explain/{request_id}", response_model_exclude_unset=True)
async def explain_request(request_id: str, state: StateDep) -> Decisions:
    """The scheduling decisions that were made for a recent request."""
    records = await asyncio.to_thread(state.lifecycle.delivery.decisions.find, request_id[:100])
    if not records:
        raise NotFoundError(
            f"No decision is known for request {request_id[:100]!r}: each worker of this host keeps its "
            f"latest {RECORDS:,}."
        )
    return Decisions(request_id=request_id, data=tuple(map(Decision.model_validate, records)))


async def _recorded_moves(state: State) -> list[PlannerMove]:
    """Empty while Redis is unavailable."""
    if not state.follower.connected:
        return []
    try:
        return [PlannerMove.model_validate_json(record) for record in await state.store.moves()]
    except StoreUnavailableError:
        return []


def _candidate(state: State, score: Score) -> Candidate:
    return Candidate(
        engine=score.engine,
        health=health(state, score.engine),
        eligible=score.cost is not None,
        action=score.action,
        cost_ms=None if score.cost is None else round(score.cost, 1),
        terms={name: round(ms, 1) for name, ms in score.terms},
        reason=score.reason,
    )


def _nowhere(scores: list[Score]) -> str:
    return "no engine of the fleet can serve it" if scores else "the fleet has no engines"


def _placement(
    state: State, engine: model.Engine, ages: Mapping[str, int], leases: Mapping[str, int]
) -> EnginePlacement:
    """`ages`: milliseconds, by version, as `leases`."""
    seen = state.pool.state(engine.name)
    placed = state.residency.placed(engine.name)

    def version(name: str) -> PlacedVersion:
        known = state.catalog.by_engine_name.get(name)
        use = seen.uses.get(name) if seen else None
        return PlacedVersion(
            version=known.id if known else f"{name} (removed)",
            state=placed[name].value,
            in_flight=max(use.in_flight if use else 0, leases.get(name, 0)),
            idle_seconds=round(ages[name] / 1000, 1) if name in ages else None,
            pinned=name in state.catalog.pins,
        )

    latest_first = sorted(placed, key=lambda name: (ages.get(name, 1 << 62), name))
    return EnginePlacement(
        engine=engine.name,
        gpu_type=engine.gpu_type,
        health=health(state, engine.name),
        hang=hang(state, engine.name),
        slots=engine.slots,
        cpu_slots=engine.cpu_slots,
        placements=tuple(map(version, latest_first)),
    )


async def _use(state: State, engines: Sequence[str]) -> Mapping[str, tuple[dict[str, int], dict[str, int]]]:
    """Ages in ms and leases, by version; empty while Redis is unavailable."""
    if not state.follower.connected:
        return {}
    try:
        return await state.store.use(engines)
    except StoreUnavailableError:
        return {}
