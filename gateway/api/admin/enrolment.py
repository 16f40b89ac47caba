"""/admin/v1/enrolment-tokens and /admin/v1/enrol: enrols engine hosts, which get their own keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from adapters.model import Purchase
from gateway.api.admin.common import Operator
from gateway.api.admin.keys import key_json
from gateway.api.dependencies import Actor, EnrolmentKey, StateDep
from gateway.operations import enrolment
from gateway.operations.transaction import Json
from gateway.schemas.base import Address, Count, Label, StrictBody
from gateway.schemas.engine_registration import EngineLabels
from gateway.tenants.directory import Pins

router = APIRouter(tags=["engines"])

LEAST_SECONDS, MOST_SECONDS = 60, 30 * 86400


class NewToken(StrictBody):
    engine: str = Field(description="The engine that the token is for.", examples=["gpu1"])
    expires_in: int = Field(3600, ge=LEAST_SECONDS, le=MOST_SECONDS, description="Seconds.")
    base: Label | None = Field(
        None, description="Pinned base model. For this and the following fields, null pins nothing."
    )
    gpu_type: Label | None = None
    gpu_count: Count | None = None
    region: str | None = Field(None, max_length=63, pattern=r"^[ -~]*$")
    purchase: Purchase | None = None
    labels: EngineLabels | None = None
    address: Address | None = Field(
        None,
        description="Host name or IP address in the engine's URLs; null: the address that it connects from.",
    )

    def pins(self) -> Pins:
        return Pins(**self.model_dump(exclude={"engine", "expires_in"}))


class Enrolment(StrictBody):
    engine: str = Field(max_length=200)
    secret: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the key that the host has generated."
    )


@router.post("/enrolment-tokens", status_code=201, dependencies=[Operator])
async def create_token(body: NewToken, state: StateDep, actor: Actor) -> Json:
    """Create an enrolment token, which only this response contains. It replaces an unused token for the same
    engine; existing keys stay valid until it is used."""
    token, text = await enrolment.create_token(
        state, body.engine, pins=body.pins(), expires_in=body.expires_in, actor=actor
    )
    return {**key_json(token), "token": text}


@router.post("/enrol", status_code=201)
async def enrol(body: Enrolment, state: StateDep, token: EnrolmentKey) -> Json:
    """Exchange an enrolment token, sent instead of a key, for the host's key. The engine's earlier keys are
    revoked; its requests continue."""
    digest = body.secret.removeprefix("sha256:")
    return key_json(await enrolment.enrol(state, token, engine=body.engine, digest=digest))
