"""Engine hosts: the tokens that they exchange for their own keys, and what their agents (`florin engine run`)
report."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from adapters.model import Purchase
from gateway.fleet.engines.schemas.registration import (
    PURCHASES,
    EngineLabels,
    EngineTenant,
    OnlyVersion,
    Token,
)
from gateway.schemas.base import Address, Answer, Count, Label, StrictBody
from gateway.schemas.options import Option
from gateway.tenants.keys.schemas import Key


class NewToken(StrictBody):
    """What is not pinned is fixed by the host's first registration."""

    engine: Annotated[str, Option("Name of the engine", flag="--name")] = Field(
        description="The engine that the token is for.", examples=["gpu1"]
    )
    expires_in: Annotated[
        int,
        Field(ge=60, le=30 * 86_400),
        Option(
            "Valid for", flag="--expires", kind="duration", help="How long the token is valid: 30m, 1h, 7d."
        ),
    ] = Field(3600, description="Seconds.")
    base: Annotated[Label | None, Option("Base model")] = Field(
        None, description="Pinned base model: the host cannot register another."
    )
    gpu_type: Annotated[Label | None, Option("GPU type")] = Field(
        None, description="Pinned GPU type, as named in the price book."
    )
    gpu_count: Annotated[Count | None, Option("GPUs")] = Field(None, description="Pinned number of GPUs.")
    region: Annotated[str | None, Option()] = Field(
        None, max_length=63, pattern=r"^[ -~]*$", description="Pinned region."
    )
    purchase: Annotated[Purchase | None, Option(choices=PURCHASES)] = Field(
        None, description="Pinned purchase model."
    )
    tenant: Annotated[EngineTenant | None, Option("Set aside for")] = Field(
        None,
        description="Dedicate the engine to this tenant, so that it serves no other. Empty: it serves all.",
    )
    labels: Annotated[EngineLabels | None, Option(flag="--label")] = Field(
        None, description="The engine's labels, pinned: it has these."
    )
    address: Annotated[Address | None, Option()] = Field(
        None,
        description="Host name or IP address in the engine's URLs, if it is not the one that the gateway "
        "sees (proxies, NAT, names).",
    )
    serves: Annotated[OnlyVersion | None, Option("Serves only", metavar="TENANT/NAME@VERSION")] = Field(
        None,
        description="The version that the host merges into its base model, and whose files it may fetch for "
        "that: it serves no other. Always pinned; empty: none.",
        examples=["acme/support@v3"],
    )


class CreatedToken(Key):
    expires: int
    token: str = Field(description="The token itself. Only this response contains it.")


class MergeSource(Answer):
    """A version that a host merges into its base model."""

    version: str
    engine_name: str = Field(description="Its name on engines: what the merged model is served as.")
    base_model: str
    digest: str
    size_bytes: int


class Enrolment(StrictBody):
    engine: str = Field(max_length=200)
    secret: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the key that the host has generated."
    )


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
