"""/admin/v1/enrolment-tokens and /admin/v1/enrol: enrols engine hosts, which get their own keys."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin_requests import Operator
from gateway.api.dependencies import Actor, EnrolmentKey, StateDep
from gateway.fleet.engines.operations import enrolment
from gateway.fleet.engines.schemas.enrolment import CreatedToken, Enrolment, NewToken
from gateway.operations.authorization import READER
from gateway.tenants.keys.routes import key_as
from gateway.tenants.keys.schemas import Key

router = APIRouter(tags=["engines"])


@router.post("/enrolment-tokens", status_code=201, dependencies=[Operator], response_model_exclude_unset=True)
async def create_token(body: NewToken, state: StateDep, actor: Actor) -> CreatedToken:
    """Create an enrolment token, which only this response contains. It replaces an unused token for the same
    engine; existing keys stay valid until it is used."""
    token, text = await enrolment.create_token(state, body, actor=actor)
    return key_as(CreatedToken, token, READER, token=text)


@router.post("/enrol", status_code=201, response_model_exclude_unset=True)
async def enrol(body: Enrolment, state: StateDep, token: EnrolmentKey) -> Key:
    """Exchange an enrolment token, sent instead of a key, for the host's key. The engine's earlier keys are
    revoked; its requests continue."""
    digest = body.secret.removeprefix("sha256:")
    return key_as(Key, await enrolment.enrol(state, token, engine=body.engine, digest=digest), READER)
