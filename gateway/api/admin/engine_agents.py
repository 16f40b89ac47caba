"""Reports of engine agents (`florin engine run`): heartbeats, and stopping."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from gateway.api.admin.common import Host
from gateway.api.dependencies import HostKey, StateDep
from gateway.operations import engine_agents
from gateway.operations.authorization import actor_of
from gateway.schemas.base import StrictBody
from gateway.schemas.engine_registration import Token
from gateway.schemas.engines import HeartbeatAnswer, StoppingAnswer

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Host])

Number = Annotated[int, Field(ge=0, le=1 << 53)]
"""Integers that every JSON parser represents exactly."""


class NewHeartbeat(StrictBody):
    epoch: Token
    instance: Token
    started: Number = Field(0, description="Start of the epoch, Unix microseconds, UTC.")
    starts: Number = Field(0, description="Number of times that this agent has started the engine.")
    cached_versions: Number = 0
    cached_bytes: Number = 0
    leaving: bool = Field(False, description="The last heartbeat: the name is free at once.")


class Stopping(StrictBody):
    epoch: Token
    seconds: Annotated[float, Field(ge=0, le=86_400)] = Field(
        0.0, description="Time until its host stops it. 0: it gets no new requests from now on."
    )


@router.put("/{name}/heartbeat")
async def heartbeat(name: str, body: NewHeartbeat, state: StateDep, key: HostKey) -> HeartbeatAnswer:
    """Report that an engine is alive. `known` is false if this epoch is not registered, or was registered
    with another key; the agent then registers the engine again."""
    report = body.model_dump(exclude={"leaving"})
    known = await engine_agents.record_heartbeat(state, name, report, key=key, leaving=body.leaving)
    return HeartbeatAnswer(known=known)


@router.put("/{name}/stopping")
async def stop_engine(name: str, body: Stopping, state: StateDep, key: HostKey) -> StoppingAnswer:
    """Report that an engine is about to stop. Its adapters are loaded elsewhere first, for half of `seconds`
    at most; then it gets no new requests until its next epoch, and `moved` is true. Repeat the call to
    follow. Its state (cordoned, draining) is kept."""
    engine = await engine_agents.stop(
        state, name, epoch=body.epoch, seconds=body.seconds, actor=actor_of(key)
    )
    return StoppingAnswer(name=name, stopping=engine.stopping, moved=not engine.moving)
