"""/admin/v1/events: the audit and usage events that Florin sends to other systems."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin.common import Operator
from gateway.api.dependencies import OperatorKey, StateDep
from gateway.event_streams.streams import StreamName
from gateway.operations import event_streams
from gateway.operations.event_streams import ReplayFrom, SkipUntil
from gateway.operations.transaction import Json

router = APIRouter(prefix="/events", tags=["events"], dependencies=[Operator])


@router.get("")
async def show(state: StateDep) -> Json:
    """How far each stream is. `to` is null if it has no receiver; `waiting` stops counting at 10,000, and
    `more` says so then; `failure` is why the last attempt failed."""
    return {"data": await event_streams.status(state)}


@router.post("/{stream}/replay")
async def replay(state: StateDep, stream: StreamName, body: ReplayFrom, key: OperatorKey) -> Json:
    """Send again what was made since then. The events have the ids that they had, so a receiver that has them
    drops them. `queued` says how many entries, or records (counted up to 10,000), wait that did not."""
    return await event_streams.replay_from(state, stream, body, key)


@router.post("/{stream}/skip")
async def skip(state: StateDep, stream: StreamName, body: SkipUntil, key: OperatorKey) -> Json:
    """Give up the events that wait and were made before then: the receiver never gets them, unless they are
    replayed. `skipped` says how many entries, or records (counted up to 10,000)."""
    return await event_streams.skip_until(state, stream, body, key)
