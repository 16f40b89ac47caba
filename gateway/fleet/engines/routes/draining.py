"""/admin/v1/engines/{name}/drain: plans, starts and follows the drain of an engine."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin_requests import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.fleet.engines.operations import draining
from gateway.fleet.engines.operations.draining import DrainStatus
from gateway.fleet.engines.schemas.engines import Drain, DrainOptions, HeldElsewhere, Move, Stay
from gateway.operations.state import State

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Operator])


@router.get("/{name}/drain")
async def show_drain(name: str, state: StateDep) -> Drain:
    """How far the drain of an engine is, or what a drain would do."""
    return drain_of(state, await draining.status(state, name))


@router.post("/{name}/drain")
async def drain(name: str, body: DrainOptions, state: StateDep, actor: Actor) -> Drain:
    """Drain an engine: load elsewhere what it holds and requests use, most recently used first; then send it
    no new requests; then release its slots. Returns at once; the gateway does the rest. Repeating the
    call continues the drain. To end it, set the state `active`."""
    status = await draining.start(state, name, seconds=body.timeout, release=body.release, actor=actor)
    return drain_of(state, status)


def drain_of(state: State, status: DrainStatus) -> Drain:
    plan, engine = status.plan, status.engine
    by_name = state.catalog.by_engine_name
    return Drain(
        engine=engine.name,
        state=engine.state,
        phase=status.phase,
        until=engine.drain.until if engine.drain else None,
        in_flight=status.in_flight,
        held=status.held,
        alone=status.alone,
        moves=tuple(
            Move(
                version=move.version.id,
                to=move.to,
                replaces=by_name[move.replaces].id if move.replaces and move.replaces in by_name else None,
                idle_seconds=round(move.idle, 1),
                in_flight=move.in_flight,
            )
            for move in plan.moves
        ),
        elsewhere=tuple(HeldElsewhere(version=v.id, engines=engines) for v, engines in plan.elsewhere),
        stays=tuple(Stay(version=v.id, reason=reason) for v, reason in plan.stays),
    )
