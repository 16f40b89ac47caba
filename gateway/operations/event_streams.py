"""How far the events that Florin sends have come; send them again, or give up what waits."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field
from yarl import URL

from gateway.costs.periods import PeriodError, instant, iso
from gateway.errors import FlorinError
from gateway.event_streams.streams import COUNTED, STREAMS, StreamName, read_status, replay, skip
from gateway.operations.authorization import actor_of
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.schemas.base import StrictBody
from gateway.tenants.directory import Key


class ReplayFrom(StrictBody):
    since: Annotated[str, Field(max_length=40, description="ISO 8601, UTC.", examples=["2026-11-01T00:00Z"])]


class SkipUntil(StrictBody):
    until: Annotated[
        str, Field(max_length=40, description="Exclusive; ISO 8601, UTC.", examples=["2026-11-01T00:00Z"])
    ]


async def status(state: State) -> list[Json]:
    """Raises LedgerUnavailableError."""
    return [await _status(state, stream) for stream in STREAMS]


async def replay_from(state: State, stream: StreamName, body: ReplayFrom, key: Key) -> Json:
    """Raises FlorinError, LedgerUnavailableError."""
    since, now = _instant("since", body.since), state.clock.now()
    queued = await state.ledger_process.run(replay, stream, since, actor=actor_of(key), now=now)
    return {**await _status(state, stream), "queued": queued}


async def skip_until(state: State, stream: StreamName, body: SkipUntil, key: Key) -> Json:
    """Raises FlorinError, LedgerUnavailableError."""
    until, now = _instant("until", body.until), state.clock.now()
    skipped = await state.ledger_process.run(skip, stream, until, actor=actor_of(key), now=now)
    return {**await _status(state, stream), "skipped": skipped}


async def _status(state: State, stream: StreamName) -> Json:
    found = await asyncio.to_thread(read_status, state.ledger, stream)
    settings = state.settings
    to = settings.audit_events_to if stream == "audit" else settings.usage_events_to
    return {
        "stream": stream,
        "to": str(URL(to).origin()) if to else None,
        "begun": None if found.begun_at is None else iso(found.begun_at),
        "waiting": found.waiting,
        "more": found.waiting >= COUNTED,
        "oldest": None if found.oldest is None else iso(found.oldest),
        "lag_seconds": round(found.lag(state.clock.now()), 3),
        "advanced": None if found.advanced_at is None else iso(found.advanced_at),
        "failure": found.failure or None,
    }


def _instant(param: str, value: str) -> int:
    try:
        return instant(param, value)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
