"""The progress of the events that Florin sends; replay them, or drop those that wait."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from yarl import URL

from gateway.costs.periods import instant, iso
from gateway.event_streams.schemas import EventStream, ReplayedStream, ReplayFrom, SkippedStream, SkipUntil
from gateway.event_streams.streams import COUNTED, STREAMS, StreamName, read_status, replay, skip
from gateway.operations.authorization import actor_of
from gateway.operations.state import State
from gateway.tenants.directory import Key

S = TypeVar("S", bound=EventStream)


async def status(state: State) -> tuple[EventStream, ...]:
    """Raises LedgerUnavailableError."""
    return tuple([await _status(state, stream, EventStream) for stream in STREAMS])


async def replay_from(state: State, stream: StreamName, body: ReplayFrom, key: Key) -> ReplayedStream:
    """Raises FlorinError, LedgerUnavailableError."""
    since, now = instant("since", body.since), state.clock.now()
    queued = await state.ledger_process.run(replay, stream, since, actor=actor_of(key), now=now)
    return await _status(state, stream, ReplayedStream, queued=queued)


async def skip_until(state: State, stream: StreamName, body: SkipUntil, key: Key) -> SkippedStream:
    """Raises FlorinError, LedgerUnavailableError."""
    until, now = instant("until", body.until), state.clock.now()
    skipped = await state.ledger_process.run(skip, stream, until, actor=actor_of(key), now=now)
    return await _status(state, stream, SkippedStream, skipped=skipped)


async def _status(state: State, stream: StreamName, answer: type[S], **more: object) -> S:
    status = await asyncio.to_thread(read_status, state.ledger, stream)
    settings = state.settings
    receiver = settings.audit_events_to if stream == "audit" else settings.usage_events_to
    return answer.of(
        status,
        stream=stream,
        to=str(URL(receiver).origin()) if receiver else None,
        begun=None if status.begun_at is None else iso(status.begun_at),
        more=status.waiting >= COUNTED,
        oldest=None if status.oldest is None else iso(status.oldest),
        lag_seconds=round(status.lag(state.clock.now()), 3),
        advanced=None if status.advanced_at is None else iso(status.advanced_at),
        failure=status.failure or None,
        **more,
    )
