"""Drains an engine: plan, start, and how far it is. The leader does the work: see
`adapters.reconcile.evacuation`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from adapters.errors import NotFoundError
from adapters.model import Drain, Engine, dump
from adapters.placement.drain_plan import DrainPlan, DrainSnapshot, drain_plan
from adapters.reconcile.evacuation import survey
from adapters.registry.transaction import Proposal
from adapters.store.protocol.registry import AuditNote
from gateway.fleet.engines.schemas.engines import Phase
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, change


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
    """No other engine of its fleet takes requests, so a drain refuses those for its base model."""


async def start(state: State, name: str, *, seconds: float, release: bool, actor: str) -> DrainStatus:
    """Begin a drain, or continue one: its versions are loaded elsewhere for `seconds` at most. `release`:
    unload what it holds once its requests have finished. Raises NotFoundError, StoreUnavailableError."""
    until = state.clock.now() + int(seconds * 1e6)

    def plan(reading: RegistryReading) -> Proposal[None]:
        old = _engine(reading.catalog.engines, name)
        drain = replace(old.drain, release=release) if old.drain else Drain(until, release=release)
        if not old.takes_requests:
            drain = replace(drain, moved=True)
        new = replace(old, state="draining", drain=drain)
        changes = [reading.change("engine", name, dump(new), dump(old))] if new != old else []
        return Proposal(changes, None, AuditNote(actor, "engine.drain", name, details=asdict(drain)))

    await change(state, plan)
    return await status(state, name)


async def status(state: State, name: str) -> DrainStatus:
    """Raises NotFoundError, StoreUnavailableError."""
    engine = _engine(state.catalog.engines, name)
    snapshot = await survey(state.store, state.catalog, state.residency, state.prewarmer.loader, engine, {})
    plan, running = drain_plan(snapshot), _in_flight(state, snapshot)
    resident = len(snapshot.leaving.held)
    if engine.drain is not None and engine.drain.moved:  # what has not been moved is not moved any more
        late = tuple((move.version, "not loaded elsewhere in time") for move in plan.moves)
        plan = replace(plan, moves=(), stays=late + plan.stays)
    alone = not any(other.serves for other in snapshot.others)
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
