"""What the agents of `florin engine run` say: each epoch, that they live, and when they stop.

An agent's name is its own while it lives, that is until three of its heartbeats are missing.
"""

from __future__ import annotations

import json
from dataclasses import replace

from adapters.engine_agent.timing import BEAT_TTL_MS
from adapters.errors import ConflictError, NotFoundError, StoreUnavailableError
from adapters.model import Engine, dump
from adapters.registry.transaction import Proposal
from adapters.store.protocol import AuditNote
from gateway.operations.inputs import HostFields
from gateway.operations.state import State
from gateway.operations.transaction import Json, RegistryReading, change
from gateway.tenants.directory import Key, Role

Heartbeats = dict[str, Json]
"""Engine → what its living agent said last."""


async def record_heartbeat(state: State, name: str, said: Json, *, key: Key, leaving: bool) -> bool:
    """False: the engine is not registered as this epoch, or with another key. `leaving`: it is the last one,
    and the name is free at once."""
    engine = state.catalog.engines.get(name)
    if engine is None or engine.epoch != said["epoch"] or engine.key != own_id(key):
        return False
    text = json.dumps(said | {"agent": engine.agent})
    await state.store.beat(name, text, ttl_ms=1 if leaving else BEAT_TTL_MS)
    return True


async def stop(state: State, name: str, *, epoch: str, actor: str) -> Engine:
    """Its host is about to stop the engine: no new requests for it until its next epoch. Raises
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
    """As `Engine.key` names it."""
    return key.id if key.role is Role.ENGINE else ""


async def living(state: State) -> Heartbeats:
    """Nobody while Redis is away."""
    try:
        said = await state.store.beats()
    except StoreUnavailableError:
        return {}
    return {engine: json.loads(text) for engine, text in said.items()}


async def check_agent(state: State, name: str, host: HostFields | None) -> None:
    """Raises ConflictError when another agent, or (None) any, runs the engine of that name."""
    heartbeat = (await living(state)).get(name)
    if heartbeat is None or (host and heartbeat.get("instance") == host.instance):
        return
    raise ConflictError(
        f"Engine {name} is run by the agent at {heartbeat.get('agent')}, which is alive: stop "
        "`florin engine run` there, or take another name."
    )


async def lose_if_new(state: State, wanted: Engine) -> None:
    """Before the new epoch is committed: of the old one's placement nothing is true any more, whether or not
    the commit succeeds."""
    old = state.catalog.engines.get(wanted.name)
    if old and wanted.epoch and old.epoch != wanted.epoch:
        await state.store.lose(wanted.name)


async def greet(state: State, engine: Engine, host: HostFields) -> str:
    """The first heartbeat of an agent that has registered: the token by which it knows the gateway. A Redis
    that was emptied is given this worker's secret again, so that workers that start later have the same."""
    secret = await state.store.secret("agent", state.control.agent_secret.decode())
    state.control.agent_secret = secret.encode()
    said = json.dumps({"epoch": host.epoch, "instance": host.instance, "agent": engine.agent})
    await state.store.beat(engine.name, said, ttl_ms=BEAT_TTL_MS)
    return state.control.agent_token(engine.name, engine.key)
