"""/admin/v1/engines: lists engines, and changes their states. `engine_registration` registers them,
`draining` drains them."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Literal

from fastapi import APIRouter, Response

from adapters.drivers import driver_of
from adapters.drivers.driver import Capabilities
from adapters.model import Engine, SlotState
from gateway.api.admin.common import Operator, as_it_is
from gateway.api.dependencies import Actor, StateDep
from gateway.operations import engines
from gateway.operations.engine_agents import Heartbeats, living
from gateway.operations.inputs import StrictBody
from gateway.operations.state import State
from gateway.operations.transaction import Json

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Operator])


class NewState(StrictBody):
    state: Literal["active", "cordoned", "draining"]


@router.get("", response_model=None)
async def list_engines(state: StateDep) -> Response:
    """All engines by name, with their health and load, as seen by this worker."""
    heartbeats = await living(state)
    engines = [engine_json(state, e, heartbeats) for _, e in sorted(state.catalog.engines.items())]
    return as_it_is({"data": engines})


@router.put("/{name}/state")
async def set_state(name: str, body: NewState, state: StateDep, actor: Actor) -> Json:
    """Set an engine's state at once. `cordoned`: accepts no new adapters; `draining`: accepts no new requests
    either; `active`: accepts both. To load its adapters elsewhere first, use `POST …/drain`."""
    engine = await engines.set_state(state, name, body.state, actor=actor)
    return engine_json(state, engine, await living(state))


@router.delete("/{name}")
async def remove_engine(name: str, state: StateDep, actor: Actor) -> Json:
    """Remove an engine and its placement. Its adapters are loaded on other engines when they are called."""
    return {"name": name, "removed": await engines.remove(state, name, actor=actor)}


@router.post("/{name}/restart")
async def restart(name: str, state: StateDep, actor: Actor) -> Json:
    """Let the agent of an engine (`florin engine run`) restart it. Running requests end: drain it first.
    Returns at once; the restarted engine has a new `epoch`."""
    await engines.restart(state, name, actor=actor)
    return {"engine": name, "restarting": True}


@router.post("/{name}/trust")
async def trust(name: str, state: StateDep, actor: Actor) -> Json:
    """Accept an engine's current base model answers as the reference for its fleet, for example after a
    change of the model, its quantization or vLLM. Versions of the fleet get new references at their next
    loads, and its engines are no longer suspect. Quarantines stay."""
    base, forgotten = await engines.trust(state, name, actor=actor)
    return {"engine": name, "base": base, "fingerprints_forgotten": forgotten}


def engine_json(state: State, engine: Engine, heartbeats: Heartbeats | None) -> Json:
    """`heartbeat`: the agent's last report; null without an agent, or if it is silent. `hang`: null while the
    engine works. `lost`: adapters that it held before its restart and that are still to be loaded again.
    `reason`: what is wrong with it, in words; null: nothing that this worker knows of. `kv_usage`: part of
    its KV cache that is in use, 0 to 1; null: unknown. `started`: start of its process, Unix microseconds;
    0: unknown. `prompt_scores`: `safe` if requests with `prompt_logprobs`, or `echo` and `logprobs`, are sent
    there. `capabilities`: of its `driver`."""
    fields = asdict(engine)
    fields["base"] = fields.pop("base_model")
    seen = state.pool.state(engine.name)
    slots = state.residency.slots(engine.name)
    heartbeat = (heartbeats or {}).get(engine.name)
    return {
        **fields,
        "capabilities": capabilities(engine),
        "health": health(state, engine.name),
        "hang": hang(state, engine.name),
        "reason": reason(state, engine, heartbeat),
        "running": seen.running if seen else 0,
        "waiting": seen.waiting if seen else 0,
        "kv_usage": seen.kv_usage if seen and seen.healthy else None,
        "resident": sum(1 for s in slots.values() if s not in {SlotState.LOADING, SlotState.LOST}),
        "lost": sum(1 for s in slots.values() if s is SlotState.LOST),
        "started": (heartbeat or {}).get("started") or (seen.process_started if seen else 0),
        "heartbeat": heartbeat,
    }


def capabilities(engine: Engine) -> Json:
    """What Florin offers on engines of its kind: see docs/other-engines.md."""
    return dict(_told(driver_of(engine).capabilities))


@cache  # one for each kind of engine; the fleet's map asks for all engines every second
def _told(capabilities: Capabilities) -> Json:
    told = asdict(capabilities)
    return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in told.items()}


def health(state: State, name: str) -> Literal["up", "down", "unknown", "hung", "ejected"]:
    """hung, ejected: it answers health checks but does no work; ejected engines get no requests for a
    while."""
    seen = state.pool.state(name)
    if seen is not None and seen.healthy is not False and seen.ejection.hangs:
        return "ejected" if seen.ejected else "hung"
    if seen is None or (seen.healthy is None and not seen.suspect):
        return "unknown"
    return "up" if seen.healthy and not seen.suspect else "down"


def reason(state: State, engine: Engine, heartbeat: Json | None) -> str | None:
    """What is wrong with the engine, in words; None: nothing that this worker knows of."""
    seen = state.pool.state(engine.name)
    if seen is not None and (hanging := state.hangs.describe(seen)):
        return hanging
    if seen is not None and (seen.healthy is False or seen.suspect):
        return seen.reason or "It does not answer."
    if (status := state.catalog.serving_statuses.get(engine.name)) is not None:
        return status.reason
    if engine.agent and heartbeat is None and state.follower.connected:
        return f"Its agent at {engine.agent} does not report."
    return None


def hang(state: State, name: str) -> Json | None:
    """Details of the engine's hang, as seen by this worker; None if it does not hang."""
    seen = state.pool.state(name)
    if seen is None or not (reason := state.hangs.describe(seen)):
        return None
    return {
        "reason": reason,
        "since": state.clock.now() - round(state.hangs.lasted(seen) * 1e6),
        "ejections": seen.ejection.ejections,
        "next_probe_seconds": round(state.hangs.next_probe(seen), 1),
    }
