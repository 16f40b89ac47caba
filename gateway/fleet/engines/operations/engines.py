"""Cordon, drain, remove and trust engines; `registration` adds them. The leader does the work of a drain: see
`adapters.reconcile.evacuation`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Literal

from adapters.errors import InUseError, NotFoundError
from adapters.model import Drain, Engine, Fingerprint, dump, fingerprint_id
from adapters.placement.drain_plan import DrainPlan, DrainSnapshot, drain_plan
from adapters.placement.fingerprint import fingerprint
from adapters.reconcile.evacuation import survey
from adapters.registry.serving_status import SUSPECT
from adapters.registry.transaction import Proposal
from adapters.store.protocol.registry import AuditNote, Change
from gateway.errors import FlorinError
from gateway.fleet.engines.operations.agents import living
from gateway.fleet.engines.schemas.engines import Phase
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, change, differences


async def set_state(
    state: State, name: str, new_state: Literal["active", "cordoned", "draining"], *, actor: str
) -> Engine:
    """Idempotent. Ends a drain in progress, and an active engine's trial that its guard has stopped. Raises
    NotFoundError."""

    def plan(reading: RegistryReading) -> Proposal[Engine]:
        old = reading.catalog.engines.get(name)
        if old is None:
            raise NotFoundError(f"There is no engine {name[:80]!r}.")
        back = new_state == "active" and old.trial is not None and bool(old.trial.stopped)
        new = replace(old, state=new_state, drain=None, trial=None if back else old.trial)
        changes = [reading.change("engine", name, dump(new), dump(old))] if new != old else []
        return Proposal(changes, new, AuditNote(actor, "engine.state", name, details=differences(old, new)))

    return await change(state, plan)


async def remove(state: State, name: str, *, actor: str) -> bool:
    """Remove the engine and its placement; False if there was none. Raises InUseError while its agent is
    alive."""
    heartbeat = (await living(state)).get(name)
    if heartbeat is not None:
        raise InUseError(
            f"The agent at {heartbeat.agent} runs engine {name} and would register it again: "
            "stop `florin engine run` there first."
        )

    def plan(reading: RegistryReading) -> Proposal[bool]:
        known = name in reading.catalog.engines
        changes = [Change("engine", name, None)] if known else []
        return Proposal(changes, known, AuditNote(actor, "engine.remove", name))

    known = await change(state, plan)
    if known:
        await state.store.unplace(name)
    return known


async def restart(state: State, name: str, *, actor: str) -> None:
    """Let the engine's agent restart it, as a new process and epoch. Raises NotFoundError, FlorinError (it
    has no agent), EngineError."""
    engine = state.catalog.engines.get(name)
    if engine is None:
        raise NotFoundError(f"There is no engine {name[:80]!r}.")
    if not engine.agent:
        raise FlorinError(
            "invalid_value",
            f"Engine {name} was not started by `florin engine run`, so Florin cannot restart it: restart it "
            "yourself.",
        )
    await state.engine_client.restart(engine)
    await state.store.commit((), audit=AuditNote(actor, "engine.restart", name))


async def trust(state: State, name: str, *, actor: str) -> tuple[str, int]:
    """Make the engine's answer to the fixed prompts the reference for its base model. Returns the base model
    and the number of versions whose fingerprints were deleted. Raises NotFoundError, EngineError."""
    engine = state.catalog.engines.get(name)
    if engine is None:
        raise NotFoundError(f"There is no engine {name!r}.")
    if engine.serves:
        raise FlorinError(
            "invalid_value",
            f"Engine {name} serves only {engine.serves}, and does not show how its base model answers: trust "
            "an engine that loads adapters.",
        )
    base = engine.base_model
    answer = await state.engine_client.probe(engine, None)
    first = fingerprint(answer, engine=name, gpu_type=engine.gpu_type, taken=state.clock.now())
    note = AuditNote(actor, "engine.trust", name, details={"base_model": base})
    return base, await change(state, lambda reading: _trust(reading, engine, first, note))


def _trust(reading: RegistryReading, by: Engine, first: Fingerprint, note: AuditNote) -> Proposal[int]:
    catalog, base, task = reading.catalog, by.base_model, by.tasks[0]
    models = [v.engine_name for v in catalog.versions.values() if v.base_model == base]
    versions = [fingerprint_id(model, task) for model in models]
    known = [name for name in versions if name in catalog.fingerprints]
    suspects = [e.name for e in catalog.fleet(base) if _is_suspect(reading, e.name)]
    changes = [
        Change("fingerprint", fingerprint_id(base, task), dump(first)),
        *(Change("fingerprint", version, None) for version in known),
        *(Change("serving_status", engine, None) for engine in suspects),
    ]
    return Proposal(changes, len(known), note)


def _is_suspect(reading: RegistryReading, engine: str) -> bool:
    serving_status = reading.catalog.serving_statuses.get(engine)
    return serving_status is not None and serving_status.code == SUSPECT


@dataclass(frozen=True, slots=True)
class DrainStatus:
    engine: Engine
    phase: Phase
    """serving: no drain has begun. loading: its versions are being loaded elsewhere. finishing: it gets no
    new requests, and some still run, or its slots have yet to be released."""
    plan: DrainPlan
    """What remains to be done, or would be."""
    in_flight: int
    """Requests that run there, over all workers as far as known."""
    held: int
    """Versions placed there."""
    alone: bool
    """No other engine of its fleet takes its requests, so a drain refuses those for its base model."""


async def start_drain(state: State, name: str, *, seconds: float, release: bool, actor: str) -> DrainStatus:
    """Begin a drain, or continue one: its versions are loaded elsewhere for `seconds` at most. `release`:
    unload what it holds once its requests have finished. Raises NotFoundError, StoreUnavailableError."""
    until = state.clock.now() + int(seconds * 1e6)

    def plan(reading: RegistryReading) -> Proposal[None]:
        old = _engine(reading.catalog.engines, name)
        drain = old.drain if old.drain and not old.rests else Drain(until)  # a rest ends by itself
        drain = replace(drain, release=release)
        if not old.takes_requests:
            drain = replace(drain, moved=True)
        new = replace(old, state="draining", drain=drain)
        changes = [reading.change("engine", name, dump(new), dump(old))] if new != old else []
        return Proposal(changes, None, AuditNote(actor, "engine.drain", name, details=asdict(drain)))

    await change(state, plan)
    return await drain_status(state, name)


async def drain_status(state: State, name: str) -> DrainStatus:
    """Raises NotFoundError, StoreUnavailableError."""
    engine = _engine(state.catalog.engines, name)
    snapshot = await survey(state.store, state.catalog, state.residency, state.prewarmer.loader, engine, {})
    plan, running = drain_plan(snapshot), _in_flight(state, snapshot)
    resident = len(snapshot.leaving.held)
    if engine.drain is not None and engine.drain.moved:  # what has not been moved is not moved any more
        late = tuple((move.version, "not loaded elsewhere in time") for move in plan.moves)
        plan = replace(plan, moves=(), stays=late + plan.stays)
    alone = not any(other.serves and other.engine.replaces(engine) for other in snapshot.others)
    return DrainStatus(engine, _phase(engine, running, resident), plan, running, resident, alone)


def _engine(engines: dict[str, Engine], name: str) -> Engine:
    if name not in engines:
        raise NotFoundError(f"There is no engine {name[:80]!r}.")
    return engines[name]


def _in_flight(state: State, snapshot: DrainSnapshot) -> int:
    leased = sum(residency.in_flight for residency in snapshot.leaving.held.values())
    seen = state.pool.state(snapshot.leaving.engine.name)
    if seen is None or seen.healthy is False:
        return leased
    return max(leased, seen.view.in_flight + seen.view.others_in_flight, seen.running + seen.waiting)


def _phase(engine: Engine, running: int, resident: int) -> Phase:
    if engine.moving:
        return "loading"
    if engine.takes_requests:
        return "serving"
    releases = engine.drain is not None and engine.drain.release
    return "finishing" if running or (releases and resident) else "drained"
