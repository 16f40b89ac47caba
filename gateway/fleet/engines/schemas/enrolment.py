"""Enrolment: the tokens that GPU hosts exchange for their own keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from adapters.model import Purchase
from gateway.fleet.engines.schemas.registration import PURCHASES, EngineLabels
from gateway.schemas.base import Address, Count, Label, StrictBody
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
    labels: Annotated[EngineLabels | None, Option(flag="--label")] = Field(
        None, description="The engine's labels, pinned: it has these."
    )
    address: Annotated[Address | None, Option()] = Field(
        None,
        description="Host name or IP address in the engine's URLs, if it is not the one that the gateway "
        "sees (proxies, NAT, names).",
    )


class CreatedToken(Key):
    expires: int
    token: str = Field(description="The token itself. Only this response contains it.")


class Enrolment(StrictBody):
    engine: str = Field(max_length=200)
    secret: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the key that the host has generated."
    )
