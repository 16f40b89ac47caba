"""Reports of engine agents (`florin engine run`): heartbeats, and stopping."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin_requests import Host
from gateway.api.dependencies import HostKey, StateDep
from gateway.fleet.engines.operations import agents as engine_agents
from gateway.fleet.engines.schemas.agents import HeartbeatAnswer, NewHeartbeat, Stopping, StoppingAnswer
from gateway.operations.authorization import actor_of

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Host])


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
