"""What the agents of `florin engine run` say: each epoch, that they live, and when they stop.

An agent's name is its own while it lives, that is until three of its heartbeats are missing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from adapters.engine_agent.timing import HEARTBEAT_TTL_MS
from adapters.errors import ConflictError, NotFoundError, StoreUnavailableError
from adapters.model import Engine, dump
from adapters.store.protocol import AuditNote, Change
from gateway.api.admin.common import Host
from gateway.api.dependencies import HostKey, StateDep
from gateway.operations.authorization import actor_of
from gateway.operations.inputs import HostFields, StrictBody, Token
from gateway.operations.state import State
from gateway.operations.transaction import Json, RegistryReading, change
from gateway.tenants.directory import Key, Role

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Host])

Number = Annotated[int, Field(ge=0, le=1 << 53)]
"""What every reader of JSON can hold."""
Heartbeats = dict[str, Json]
"""Engine → what its living agent said last."""


class Heartbeat(StrictBody):
    epoch: Token
    instance: Token
    started: Number = Field(0, description="When the epoch began, Unix microseconds, UTC.")
    starts: Number = Field(0, description="How often this agent has started the engine.")
    cached_versions: Number = 0
    cached_bytes: Number = 0
    leaving: bool = Field(False, description="This is the last one: the name is free at once.")


class Stopping(StrictBody):
    epoch: Token


@router.put("/{name}/heartbeat")
async def heartbeat(name: str, body: Heartbeat, state: StateDep, key: HostKey) -> Json:
    """`known` false: the engine is not registered as this epoch, or with another key, and its agent registers
    it again."""
    engine = state.catalog.engines.get(name)
    known = engine is not None and engine.epoch == body.epoch and engine.key == own_id(key)
    if engine and known:
        said = json.dumps(body.model_dump(exclude={"leaving"}) | {"agent": engine.agent})
        await state.store.heartbeat(name, said, ttl_ms=1 if body.leaving else HEARTBEAT_TTL_MS)
    return {"known": known}


@router.put("/{name}/stopping")
async def stop_engine(name: str, body: Stopping, state: StateDep, key: HostKey) -> Json:
    """Its host is about to stop the engine: no new requests for it. Its next epoch ends this; what operators
    said of it (cordon, drain) stays."""

    async def plan(reading: RegistryReading) -> tuple[list[Change], Engine]:
        old = reading.catalog.engines.get(name)
        if old is None:
            raise NotFoundError(f"There is no engine {name[:80]!r}.")
        if old.epoch != body.epoch:
            raise ConflictError(f"Engine {name} is registered as another epoch.")
        new = replace(old, stopping=True)
        return [reading.change("engine", name, dump(new), dump(old))] if new != old else [], new

    engine = await change(state, plan, audit=AuditNote(actor_of(key), "engine.stop", name))
    return {"name": name, "stopping": engine.stopping}


def own_id(key: Key) -> str:
    """As `Engine.key` names it."""
    return key.id if key.role is Role.ENGINE else ""


async def living(state: State) -> Heartbeats:
    """Nobody while Redis is away."""
    try:
        said = await state.store.heartbeats()
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
        await state.store.mark_lost(wanted.name)


async def greet(state: State, engine: Engine, host: HostFields) -> str:
    """The first heartbeat of an agent that has registered: the token by which it knows the gateway. A Redis
    that was emptied is given this worker's secret again, so that workers that start later have the same."""
    secret = await state.store.secret("agent", state.control.agent_secret.decode())
    state.control.agent_secret = secret.encode()
    said = json.dumps({"epoch": host.epoch, "instance": host.instance, "agent": engine.agent})
    await state.store.heartbeat(engine.name, said, ttl_ms=HEARTBEAT_TTL_MS)
    return state.control.agent_token(engine.name, engine.key)
