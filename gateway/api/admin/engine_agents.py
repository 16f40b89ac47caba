"""What the agents of `florin engine run` say: that they live, and when they stop."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from gateway.api.admin.common import Host
from gateway.api.dependencies import HostKey, StateDep
from gateway.operations import engine_agents
from gateway.operations.authorization import actor_of
from gateway.operations.inputs import StrictBody, Token
from gateway.operations.transaction import Json

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Host])

Number = Annotated[int, Field(ge=0, le=1 << 53)]
"""What every reader of JSON can hold."""


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
    said = body.model_dump(exclude={"leaving"})
    return {"known": await engine_agents.record_heartbeat(state, name, said, key=key, leaving=body.leaving)}


@router.put("/{name}/stopping")
async def stop_engine(name: str, body: Stopping, state: StateDep, key: HostKey) -> Json:
    """Its host is about to stop the engine: no new requests for it. Its next epoch ends this; what operators
    said of it (cordon, drain) stays."""
    engine = await engine_agents.stop(state, name, epoch=body.epoch, actor=actor_of(key))
    return {"name": name, "stopping": engine.stopping}
