"""The audit and usage events that Florin sends to other systems."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.schemas.base import Answer, StrictBody
from gateway.schemas.options import Option


class ReplayFrom(StrictBody):
    since: Annotated[str, Field(max_length=40), Option(flag="--from", metavar="TIME")] = Field(
        description="Start, ISO 8601, UTC; inclusive.", examples=["2026-11-01T00:00Z"]
    )


class SkipUntil(StrictBody):
    until: Annotated[str, Field(max_length=40), Option(flag="--to", metavar="TIME")] = Field(
        description="End, ISO 8601, UTC; exclusive.", examples=["2026-11-01T00:00Z"]
    )


class EventStream(Answer):
    """How far a stream is. Times are ISO 8601, UTC."""

    stream: str
    to: str | None = Field(description="Origin of its receiver's URL; null: it has none.")
    begun: str | None
    waiting: int = Field(description="Entries or records that wait, counted up to 10,000.")
    more: bool = Field(description="More wait than were counted.")
    oldest: str | None = Field(description="When the oldest that waits was made.")
    lag_seconds: float
    advanced: str | None = Field(description="The last delivery.")
    failure: str | None = Field(description="Why the last attempt failed; null: it did not.")


class ReplayedStream(EventStream):
    queued: int = Field(description="Entries, or records (counted up to 10,000), that wait and did not.")


class SkippedStream(EventStream):
    skipped: int = Field(description="Entries, or records (counted up to 10,000), that were given up.")
