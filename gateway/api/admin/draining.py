"""/admin/v1/engines/{name}/drain: plans, starts and follows the drain of an engine."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from gateway.api.admin.common import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.operations import draining
from gateway.operations.draining import DrainStatus
from gateway.operations.inputs import StrictBody
from gateway.operations.state import State
from gateway.operations.transaction import Json

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Operator])


class DrainOptions(StrictBody):
    timeout: Annotated[float, Field(ge=0, le=86_400)] = Field(
        600.0, description="Seconds for loading its adapters elsewhere; then it gets no new requests anyway."
    )
    release: bool = Field(
        True,
        description="Unload its adapters once its requests have finished. false: keep them for a restart, "
        "after which they are loaded again.",
    )


@router.get("/{name}/drain")
async def show_drain(name: str, state: StateDep) -> Json:
    """How far the drain of an engine is, or what a drain would do. `phase`: `serving` (no drain), `loading`
    (its adapters are being loaded elsewhere), `finishing` (it gets no new requests; some still run) or
    `drained`. `moves`: what remains to be loaded elsewhere; `elsewhere`: what other engines hold already;
    `stays`: what is not moved, and why."""
    return drain_json(state, await draining.status(state, name))


@router.post("/{name}/drain")
async def drain(name: str, body: DrainOptions, state: StateDep, actor: Actor) -> Json:
    """Drain an engine: load elsewhere what it holds and requests use, most recently used first; then send it
    no new requests; then release its slots. Returns at once; the gateway does the rest. Repeating the
    call continues the drain. To end it, set the state `active`."""
    status = await draining.start(state, name, seconds=body.timeout, release=body.release, actor=actor)
    return drain_json(state, status)


def drain_json(state: State, status: DrainStatus) -> Json:
    plan, engine = status.plan, status.engine
    by_name = state.catalog.by_engine_name
    return {
        "engine": engine.name,
        "state": engine.state,
        "phase": status.phase,
        "until": engine.drain.until if engine.drain else None,
        "in_flight": status.in_flight,
        "held": status.held,
        "alone": status.alone,
        "moves": [
            {
                "version": move.version.id,
                "to": move.to,
                "replaces": by_name[move.replaces].id if move.replaces and move.replaces in by_name else None,
                "idle_seconds": round(move.idle, 1),
                "in_flight": move.in_flight,
            }
            for move in plan.moves
        ],
        "elsewhere": [{"version": v.id, "engines": list(engines)} for v, engines in plan.elsewhere],
        "stays": [{"version": v.id, "reason": reason} for v, reason in plan.stays],
    }
