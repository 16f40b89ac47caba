"""/admin/v1/engines: lists engines, and changes their states. `engine_registration` registers them,
`draining` drains them."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter, Response

from adapters import model
from adapters.drivers import driver, driver_of
from adapters.model import SlotState
from gateway.api.admin_requests import Operator, listed
from gateway.api.dependencies import Actor, StateDep
from gateway.fleet.engines.operations import engines
from gateway.fleet.engines.operations.agents import Heartbeats, living
from gateway.fleet.engines.schemas.engines import (
    Capabilities,
    Engine,
    Hang,
    Health,
    Heartbeat,
    NewState,
    RestartingEngine,
    TrustedEngine,
)
from gateway.operations.state import State
from gateway.schemas.base import Listed, Removed

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Operator])


@router.get("", response_model=Listed[Engine])
async def list_engines(state: StateDep) -> Response:
    """All engines by name, with their health and load, as seen by this worker."""
    heartbeats = await living(state)
    by_name = [engine for _, engine in sorted(state.catalog.engines.items())]
    return await listed(by_name, lambda engine: engine_of(state, engine, heartbeats))


@router.put("/{name}/state")
async def set_state(name: str, body: NewState, state: StateDep, actor: Actor) -> Engine:
    """Set an engine's state at once. `cordoned`: accepts no new adapters; `draining`: accepts no new requests
    either; `active`: accepts both. To load its adapters elsewhere first, use `POST …/drain`."""
    engine = await engines.set_state(state, name, body.state, actor=actor)
    return engine_of(state, engine, await living(state))


@router.delete("/{name}")
async def remove_engine(name: str, state: StateDep, actor: Actor) -> Removed:
    """Remove an engine and its placement. Its adapters are loaded on other engines when they are called."""
    return Removed(name=name, removed=await engines.remove(state, name, actor=actor))


@router.post("/{name}/restart")
async def restart(name: str, state: StateDep, actor: Actor) -> RestartingEngine:
    """Let the agent of an engine (`florin engine run`) restart it. Running requests end: drain it first.
    Returns at once; the restarted engine has a new `epoch`."""
    await engines.restart(state, name, actor=actor)
    return RestartingEngine(engine=name, restarting=True)


@router.post("/{name}/trust")
async def trust(name: str, state: StateDep, actor: Actor) -> TrustedEngine:
    """Accept an engine's current base model answers as the reference for its fleet, for example after a
    change of the model, its quantization or vLLM. Versions of the fleet get new references at their next
    loads, and its engines are no longer suspect. Quarantines stay."""
    base, forgotten = await engines.trust(state, name, actor=actor)
    return TrustedEngine(engine=name, base=base, fingerprints_forgotten=forgotten)


def engine_of(state: State, engine: model.Engine, heartbeats: Heartbeats | None) -> Engine:
    seen = state.pool.state(engine.name)
    slots = state.residency.slots(engine.name)
    heartbeat = (heartbeats or {}).get(engine.name)
    return Engine.of(
        engine,
        base=engine.base_model,
        capabilities=capabilities(engine),
        health=health(state, engine.name),
        hang=hang(state, engine.name),
        reason=reason(state, engine, heartbeat),
        running=seen.running if seen else 0,
        waiting=seen.waiting if seen else 0,
        kv_usage=seen.kv_usage if seen and seen.healthy else None,
        resident=sum(1 for s in slots.values() if s not in {SlotState.LOADING, SlotState.LOST}),
        lost=sum(1 for s in slots.values() if s is SlotState.LOST),
        started=(heartbeat.started if heartbeat else 0) or (seen.process_started if seen else 0),
        heartbeat=heartbeat,
    )


def capabilities(engine: model.Engine) -> Capabilities:
    """What Florin offers on engines of its kind: see docs/other-engines.md."""
    return _capabilities(driver_of(engine).capabilities)


@cache  # one for each kind of engine; the fleet's map asks for all engines every second
def _capabilities(of_kind: driver.Capabilities) -> Capabilities:
    return Capabilities.model_validate(of_kind)


def health(state: State, name: str) -> Health:
    """hung, ejected: it answers health checks but does no work; ejected engines get no requests for a
    while."""
    seen = state.pool.state(name)
    if seen is not None and seen.healthy is not False and seen.ejection.hangs:
        return "ejected" if seen.ejected else "hung"
    if seen is None or (seen.healthy is None and not seen.suspect):
        return "unknown"
    return "up" if seen.healthy and not seen.suspect else "down"


def reason(state: State, engine: model.Engine, heartbeat: Heartbeat | None) -> str | None:
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


def hang(state: State, name: str) -> Hang | None:
    """Details of the engine's hang, as seen by this worker; None if it does not hang."""
    seen = state.pool.state(name)
    if seen is None or not (reason := state.hangs.describe(seen)):
        return None
    return Hang(
        reason=reason,
        since=state.clock.now() - round(state.hangs.lasted(seen) * 1e6),
        ejections=seen.ejection.ejections,
        next_probe_seconds=round(state.hangs.next_probe(seen), 1),
    )
