"""/admin/v1/events: the audit and usage events that Florin sends to other systems."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin_requests import Operator
from gateway.api.dependencies import OperatorKey, StateDep
from gateway.event_streams import operations as event_streams
from gateway.event_streams.schemas import EventStream, ReplayedStream, ReplayFrom, SkippedStream, SkipUntil
from gateway.event_streams.streams import StreamName
from gateway.schemas.base import Listed

router = APIRouter(prefix="/events", tags=["events"], dependencies=[Operator])


@router.get("")
async def show(state: StateDep) -> Listed[EventStream]:
    """How far each stream is."""
    return Listed(data=await event_streams.status(state))


@router.post("/{stream}/replay")
async def replay(state: StateDep, stream: StreamName, body: ReplayFrom, key: OperatorKey) -> ReplayedStream:
    """Send again what was made since then. The events have the ids that they had, so a receiver that has them
    drops them."""
    return await event_streams.replay_from(state, stream, body, key)


@router.post("/{stream}/skip")
async def skip(state: StateDep, stream: StreamName, body: SkipUntil, key: OperatorKey) -> SkippedStream:
    """Give up the events that wait and were made before then: the receiver never gets them, unless they are
    replayed."""
    return await event_streams.skip_until(state, stream, body, key)
