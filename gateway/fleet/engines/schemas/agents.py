"""What engine agents (`florin engine run`) report to the gateway."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.fleet.engines.schemas.registration import Token
from gateway.schemas.base import Answer, StrictBody

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


class HeartbeatAnswer(Answer):
    known: bool = Field(description="false: register the engine again; this epoch or key did not.")


class StoppingAnswer(Answer):
    name: str
    stopping: bool
    moved: bool = Field(description="It gets no new requests.")
