"""/admin/v1/engines and /admin/v1/bases: engines, their states and drains, and what they serve. `hosts`
registers them."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache

from fastapi import APIRouter, Response

from adapters import model
from adapters.drivers import driver, driver_of
from adapters.errors import NotFoundError
from adapters.model import SlotState
from adapters.registry.change_context import text_rank
from gateway.api.admin_requests import Controlled, Managed, Operator, listed
from gateway.api.dependencies import Actor, Manager, StateDep
from gateway.fleet.adapters.operations.canaries import figures
from gateway.fleet.engines.operations import engines, trials
from gateway.fleet.engines.operations.agents import Heartbeats, living
from gateway.fleet.engines.operations.engines import DrainStatus
from gateway.fleet.engines.schemas.engines import (
    Capabilities,
    Drain,
    DrainOptions,
    Engine,
    Hang,
    Health,
    Heartbeat,
    HeldElsewhere,
    Move,
    NewState,
    NewTrial,
    OwnTrial,
    RestartingEngine,
    ServedBase,
    Stay,
    TrialDetails,
    TrustedEngine,
)
from gateway.operations.state import State
from gateway.schemas.base import GuardTerms, Listed, Removed

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Operator])
controlled = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Controlled])
bases = APIRouter(prefix="/bases", tags=["engines"], dependencies=[Managed])


@controlled.get("", response_model=Listed[Engine])
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


@router.get("/{name}/trial")
async def show_trial(name: str, state: StateDep) -> TrialDetails:
    """The trial of an engine, beside the rest of its fleet, in the last window."""
    engine = state.catalog.engines.get(name)
    if engine is None or engine.trial is None:
        raise NotFoundError(f"There is no engine {name[:80]!r} on trial.")
    compared = await trials.compared(state, engine)
    return TrialDetails(
        engine=name,
        version=engine.version,
        trial=OwnTrial.model_validate(engine.trial),
        guard=GuardTerms.model_construct(**asdict(engine.trial.guard)),
        own=figures(compared.engine),
        others=figures(compared.others),
        verdict=trials.VERDICTS[compared.judgement.verdict],
        reason=compared.judgement.reason,
    )


@router.put("/{name}/trial")
async def begin_trial(name: str, body: NewTrial, state: StateDep, actor: Actor) -> Engine:
    """Put an engine on trial, or change its trial, which begins the comparison again. It gets its share of
    the requests for the base model and for adapters that other engines hold, too, until its guard makes it an
    engine like the others or, if it is worse, drains it. A process of another version begins the comparison
    again: so put an engine on trial before its upgrade."""
    engine = await trials.begin(state, name, body.share, body.guard(), actor=actor)
    return engine_of(state, engine, await living(state))


@router.delete("/{name}/trial")
async def end_trial(name: str, state: StateDep, actor: Actor) -> Engine:
    """End the trial of an engine, whatever it has shown: it becomes an engine like the others. If its guard
    has drained it, it stays drained until its state is set `active`."""
    return engine_of(state, await trials.end(state, name, actor=actor), await living(state))


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
    if engine.trial is not None and engine.trial.stopped:
        return f"The guard of its trial drained it. {engine.trial.stopped}"
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


@router.get("/{name}/drain")
async def show_drain(name: str, state: StateDep) -> Drain:
    """How far the drain of an engine is, or what a drain would do."""
    return drain_of(state, await engines.drain_status(state, name))


@router.post("/{name}/drain")
async def drain(name: str, body: DrainOptions, state: StateDep, actor: Actor) -> Drain:
    """Drain an engine: load elsewhere what it holds and requests use, most recently used first; then send it
    no new requests; then release its slots. Returns at once; the gateway does the rest. Repeating the
    call continues the drain. To end it, set the state `active`."""
    status = await engines.start_drain(state, name, seconds=body.timeout, release=body.release, actor=actor)
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
        elsewhere=tuple(HeldElsewhere(version=v.id, engines=names) for v, names in plan.elsewhere),
        stays=tuple(Stay(version=v.id, reason=reason) for v, reason in plan.stays),
    )


@bases.get("", response_model_exclude_unset=True)
async def list_bases(state: StateDep, authority: Manager) -> Listed[ServedBase]:
    """The base models."""
    operator = authority.tenant is None
    by_name = sorted(state.catalog.bases.items())
    return Listed(data=tuple(_served(state, base, operator=operator) for _, base in by_name))


def _served(state: State, base: model.BaseModel, *, operator: bool) -> ServedBase:
    fleet = state.catalog.fleet(base.name)
    loading = [engine for engine in fleet if not engine.serves]
    more = {"engines": sorted(engine.name for engine in fleet)} if operator else {}
    return ServedBase.of(
        base,
        base_model=base.name,
        aliases=base.aliases if operator else base.public_aliases,
        ranks=sorted({engine.max_rank for engine in loading}),
        text_rank=text_rank(loading),
        **more,
    )
