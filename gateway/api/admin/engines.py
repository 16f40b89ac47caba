"""/admin/v1/engines: what is there, and what operators say of it. `engine_registration` is how it comes
there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from fastapi import APIRouter

from adapters.model import Engine, SlotState
from gateway.api.admin.common import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.operations import engines
from gateway.operations.engine_agents import Heartbeats, living
from gateway.operations.inputs import StrictBody
from gateway.operations.state import State
from gateway.operations.transaction import Json

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Operator])


class NewState(StrictBody):
    state: Literal["active", "cordoned", "draining"]


@router.get("")
async def list_engines(state: StateDep) -> Json:
    """All engines, by name, with their health and load as this worker sees them."""
    heartbeats = await living(state)
    return {"data": [engine_json(state, e, heartbeats) for _, e in sorted(state.catalog.engines.items())]}


@router.put("/{name}/state")
async def set_state(name: str, body: NewState, state: StateDep, actor: Actor) -> Json:
    """cordoned: takes no new adapters; draining: takes no new requests either; active: takes both."""
    engine = await engines.set_state(state, name, body.state, actor=actor)
    return engine_json(state, engine, await living(state))


@router.delete("/{name}")
async def remove_engine(name: str, state: StateDep, actor: Actor) -> Json:
    """Forget the engine and its placement. Its adapters are loaded elsewhere when they are called."""
    return {"name": name, "removed": await engines.remove(state, name, actor=actor)}


@router.post("/{name}/trust")
async def trust(name: str, state: StateDep, actor: Actor) -> Json:
    """Say that the engine computes its base model as it should, for example after a change of the model, of
    its quantization or of vLLM. Its answer to the fixed prompts is taken, now, as the one to which the base
    model is held on every engine; the fleet's versions are held to what they answer after their next loads;
    and no engine of the fleet is suspect any more. Quarantines stay."""
    base, forgotten = await engines.trust(state, name, actor=actor)
    return {"engine": name, "base": base, "fingerprints_forgotten": forgotten}


def engine_json(state: State, engine: Engine, heartbeats: Heartbeats | None) -> Json:
    """`heartbeat`: what its agent said last; null: it has none, or is silent. `hang`: null while it works."""
    fields = asdict(engine)
    fields["base"] = fields.pop("base_model")
    seen = state.pool.state(engine.name)
    slots = state.residency.slots(engine.name)
    return {
        **fields,
        "health": health(state, engine.name),
        "hang": hang(state, engine.name),
        "running": seen.running if seen else 0,
        "waiting": seen.waiting if seen else 0,
        "resident": sum(1 for s in slots.values() if s not in {SlotState.LOADING, SlotState.LOST}),
        "heartbeat": (heartbeats or {}).get(engine.name),
    }


def health(state: State, name: str) -> Literal["up", "down", "unknown", "hung", "ejected"]:
    """hung, ejected: it answers health checks and does no work; ejected: for a while at least."""
    seen = state.pool.state(name)
    if seen is not None and seen.healthy is not False and seen.standing.hangs:
        return "ejected" if seen.ejected else "hung"
    if seen is None or (seen.healthy is None and not seen.suspect):
        return "unknown"
    return "up" if seen.healthy and not seen.suspect else "down"


def hang(state: State, name: str) -> Json | None:
    """How an engine hangs, as this worker sees it; None: it does not."""
    seen = state.pool.state(name)
    if seen is None or not (reason := state.hangs.describe(seen)):
        return None
    return {
        "reason": reason,
        "since": state.clock.now() - round(state.hangs.lasted(seen) * 1e6),
        "ejections": seen.standing.ejections,
        "next_probe_seconds": round(state.hangs.next_probe(seen), 1),
    }
