"""What the agents of `florin engine run` report: their epochs, their heartbeats, and when they stop.

An engine name belongs to its agent while the agent is alive, that is until three heartbeats are missing.
"""

from __future__ import annotations

import json
from dataclasses import replace

from adapters.engine_agent.timing import HEARTBEAT_TTL_MS
from adapters.errors import ConflictError, NotFoundError, StoreUnavailableError
from adapters.model import Engine, dump
from adapters.registry.transaction import Proposal
from adapters.store.protocol import AuditNote
from gateway.operations.inputs import HostFields
from gateway.operations.state import State
from gateway.operations.transaction import Json, RegistryReading, change
from gateway.tenants.directory import Key, Role

Heartbeats = dict[str, Json]
"""Engine → the last heartbeat of its living agent."""


async def record_heartbeat(state: State, name: str, said: Json, *, key: Key, leaving: bool) -> bool:
    """Returns False if the engine is not registered with this epoch and key. `leaving` marks the last
    heartbeat, which frees the name at once."""
    engine = state.catalog.engines.get(name)
    if engine is None or engine.epoch != said["epoch"] or engine.key != own_id(key):
        return False
    text = json.dumps(said | {"agent": engine.agent})
    await state.store.heartbeat(name, text, ttl_ms=1 if leaving else HEARTBEAT_TTL_MS)
    return True


async def stop(state: State, name: str, *, epoch: str, actor: str) -> Engine:
    """Send the engine no new requests until its next epoch, because its host is about to stop it. Raises
    NotFoundError, ConflictError (another epoch)."""

    def plan(reading: RegistryReading) -> Proposal[Engine]:
        old = reading.catalog.engines.get(name)
        if old is None:
            raise NotFoundError(f"There is no engine {name[:80]!r}.")
        if old.epoch != epoch:
            raise ConflictError(f"Engine {name} is registered as another epoch.")
        new = replace(old, stopping=True)
        changes = [reading.change("engine", name, dump(new), dump(old))] if new != old else []
        return Proposal(changes, new, AuditNote(actor, "engine.stop", name))

    return await change(state, plan)


def own_id(key: Key) -> str:
    """The key's id as stored in `Engine.key`."""
    return key.id if key.role is Role.ENGINE else ""


async def living(state: State) -> Heartbeats:
    """Empty while Redis is unavailable."""
    try:
        said = await state.store.heartbeats()
    except StoreUnavailableError:
        return {}
    return {engine: json.loads(text) for engine, text in said.items()}


async def check_agent(state: State, name: str, host: HostFields | None) -> None:
    """Raises ConflictError if another agent runs the engine of that name; with `host` None, if any does."""
    heartbeat = (await living(state)).get(name)
    if heartbeat is None or (host and heartbeat.get("instance") == host.instance):
        return
    raise ConflictError(
        f"Engine {name} is run by the agent at {heartbeat.get('agent')}, which is alive: stop "
        "`florin engine run` there, or take another name."
    )


async def lose_if_new(state: State, wanted: Engine) -> None:
    """Forget the placement of the engine's old epoch. Call it before a new epoch is committed: the old
    placement is wrong whether or not the commit succeeds."""
    old = state.catalog.engines.get(wanted.name)
    if old and wanted.epoch and old.epoch != wanted.epoch:
        await state.store.mark_lost(wanted.name)


async def greet(state: State, engine: Engine, host: HostFields) -> str:
    """Record the first heartbeat of a newly registered agent, and return the token by which it recognizes
    the gateway. An emptied Redis gets this worker's secret back, so that later workers use the same one."""
    secret = await state.store.secret("agent", state.control.agent_secret.decode())
    state.control.agent_secret = secret.encode()
    said = json.dumps({"epoch": host.epoch, "instance": host.instance, "agent": engine.agent})
    await state.store.heartbeat(engine.name, said, ttl_ms=HEARTBEAT_TTL_MS)
    return state.control.agent_token(engine.name, engine.key)
