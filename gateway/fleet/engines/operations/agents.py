"""What the agents of `florin engine run` report: their epochs, their heartbeats, and when they stop.

An engine name belongs to its agent while the agent is alive, that is until three heartbeats are missing.
"""

from __future__ import annotations

import json
from dataclasses import replace

from adapters.engine_agent.state import HEARTBEAT_TTL_MS
from adapters.errors import ConflictError, NotFoundError, StoreUnavailableError
from adapters.model import Drain, Engine, dump
from adapters.registry.catalog import Catalog
from adapters.registry.transaction import Proposal
from adapters.store.protocol.registry import AuditNote
from gateway.fleet.engines.schemas.engines import Heartbeat
from gateway.fleet.engines.schemas.registration import ProcessFields
from gateway.operations.state import State
from gateway.operations.transaction import Json, RegistryReading, change
from gateway.tenants.directory import Key, Role

Heartbeats = dict[str, Heartbeat]
"""Engine → the last heartbeat of its living agent."""


async def record_heartbeat(state: State, name: str, report: Json, *, key: Key, leaving: bool) -> bool:
    """Returns False if the engine is not registered with this epoch and key. `leaving` marks the last
    heartbeat, which frees the name at once."""
    engine = state.catalog.engines.get(name)
    if engine is None or engine.epoch != report["epoch"] or engine.key != own_id(key):
        return False
    text = json.dumps(report | {"agent": engine.agent})
    await state.store.heartbeat(name, text, ttl_ms=1 if leaving else HEARTBEAT_TTL_MS)
    return True


async def stop(state: State, name: str, *, epoch: str, seconds: float, actor: str) -> Engine:
    """Send the engine no new requests until its next epoch, because its host stops it in `seconds`. Half of
    that time is for loading its adapters elsewhere, during which it still serves them, and half for its
    requests to finish. Idempotent. Raises NotFoundError, ConflictError (another epoch)."""
    now = state.clock.now()

    def plan(reading: RegistryReading) -> Proposal[Engine]:
        old = reading.catalog.engines.get(name)
        if old is None:
            raise NotFoundError(f"There is no engine {name[:80]!r}.")
        if old.epoch != epoch:
            raise ConflictError(f"Engine {name} is registered as another epoch.")
        drain = old.drain
        if old.takes_requests:
            drain = drain or Drain(now + int(seconds * 5e5), release=False)
            drain = replace(drain, until=min(drain.until, now + int(seconds * 5e5)))
            over = now >= drain.until or not _can_move(state, reading.catalog, old)
            drain = replace(drain, moved=over)
        new = replace(old, stopping=True, drain=drain)
        changes = [reading.change("engine", name, dump(new), dump(old))] if new != old else []
        note = None if old.stopping else AuditNote(actor, "engine.stop", name, details={"seconds": seconds})
        return Proposal(changes, new, note)

    return await change(state, plan)


def _can_move(state: State, catalog: Catalog, engine: Engine) -> bool:
    """Whether it holds something that another engine could load."""
    others = (e for e in catalog.fleet(engine.base_model) if e.replaces(engine) and e.takes_adapters)
    return any(state.pool.usable(e.name) for e in others) and bool(state.residency.slots(engine.name))


def own_id(key: Key) -> str:
    """The key's id as stored in `Engine.key`."""
    return key.id if key.role is Role.ENGINE else ""


async def living(state: State) -> Heartbeats:
    """Empty while Redis is unavailable."""
    try:
        texts = await state.store.heartbeats()
    except StoreUnavailableError:
        return {}
    return {engine: Heartbeat.model_validate_json(text) for engine, text in texts.items()}


async def check_agent(state: State, name: str, host: ProcessFields | None) -> None:
    """Raises ConflictError if another agent runs the engine of that name; with `host` None, if any does."""
    heartbeat = (await living(state)).get(name)
    if heartbeat is None or (host and heartbeat.instance == host.instance):
        return
    raise ConflictError(
        f"Engine {name} is run by the agent at {heartbeat.agent}, which is alive: stop "
        "`florin engine run` there, or take another name."
    )


async def lose_if_new(state: State, engine: Engine) -> None:
    """Forget the placement of the engine's old epoch. Call it before a new epoch is committed: the old
    placement is wrong whether or not the commit succeeds."""
    old = state.catalog.engines.get(engine.name)
    if old and engine.epoch and old.epoch != engine.epoch:
        await state.store.mark_lost(engine.name)


async def greet(state: State, engine: Engine, host: ProcessFields) -> str:
    """Record the first heartbeat of a newly registered agent, and return the token by which it recognizes
    the gateway. An emptied Redis gets this worker's secret back, so that later workers use the same one."""
    secret = await state.store.secret("agent", state.engine_client.agent_secret.decode())
    state.engine_client.agent_secret = secret.encode()
    report = Heartbeat(epoch=host.epoch, instance=host.instance, agent=engine.agent)
    await state.store.heartbeat(engine.name, report.model_dump_json(), ttl_ms=HEARTBEAT_TTL_MS)
    return state.engine_client.agent_token(engine.name, engine.key)
