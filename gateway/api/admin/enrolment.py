"""/admin/v1/enrolment-tokens and /admin/v1/enrol: how the host of an engine comes to a key of its own.

An operator makes a token for one engine's name. The host makes a key, keeps it, and gives the token with the
key's digest: so no secret that lasts is ever sent, and a host that hears no answer has its key all the same.
The first exchange that commits uses the token up, and all others are refused.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from adapters.errors import ConflictError
from adapters.model import Purchase
from adapters.store.protocol import AuditNote, Change
from gateway.api.admin.common import Operator
from gateway.api.admin.keys import check_engine, key_json
from gateway.api.dependencies import Actor, EnrolmentKey, StateDep
from gateway.errors import FlorinError
from gateway.lifecycle import USED_UP
from gateway.operations.inputs import Count, Label, StrictBody
from gateway.operations.transaction import Json, RegistryReading, change
from gateway.tenants.directory import Key, Pins, Role, dump, mint

router = APIRouter(tags=["engines"])

LEAST_SECONDS, MOST_SECONDS = 60, 30 * 86400
_KEPT_MICROS = 86_400_000_000
"""For so long a token is listed after it has expired or was used."""


class NewToken(StrictBody):
    engine: str = Field(description="The engine's name; the token is for no other.", examples=["gpu1"])
    expires_in: int = Field(3600, ge=LEAST_SECONDS, le=MOST_SECONDS, description="Seconds.")
    base: Label | None = Field(
        None, description="What it must serve. This and what follows: null leaves it open."
    )
    gpu_type: Label | None = None
    gpu_count: Count | None = None
    region: str | None = Field(None, max_length=63, pattern=r"^[ -~]*$")
    purchase: Purchase | None = None
    address: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        pattern=r"^[A-Za-z0-9._:-]+$",
        description="Host name or IP address of its URLs; null: the address that it connects from.",
    )

    def pins(self) -> Pins:
        return Pins(**self.model_dump(exclude={"engine", "expires_in"}))


class Enrolment(StrictBody):
    engine: str = Field(max_length=200)
    secret: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the text of the key that the host has made."
    )


@router.post("/enrolment-tokens", status_code=201, dependencies=[Operator])
async def create_token(body: NewToken, state: StateDep, actor: Actor) -> Json:
    """The answer holds the token itself, this once. It takes the place of an earlier one for the same engine
    that has not been used; keys stay valid until it is."""
    check_engine(body.engine)
    now = state.clock.now()
    expires = now + body.expires_in * 1_000_000
    token, text = mint("", Role.ENROLMENT, now, engine=body.engine, pins=body.pins(), expires=expires)

    async def plan(reading: RegistryReading) -> tuple[list[Change], None]:
        stale = [k for k in reading.directory.keys.values() if _stale(k, body.engine, now)]
        gone = [replace(reading.change("key", k.id, dump(k), dump(k)), data=None) for k in stale]
        return [Change("key", token.id, dump(token), expect=None), *gone], None

    details = {"token": token.id, "expires_in": body.expires_in, **key_json(token)["pins"]}
    await change(state, plan, audit=AuditNote(actor, "token.create", body.engine, details=details))
    return {**key_json(token), "token": text}


@router.post("/enrol", status_code=201)
async def enrol(body: Enrolment, state: StateDep, token: EnrolmentKey) -> Json:
    """With a token instead of a key. The engine's earlier keys are revoked; its requests go on."""
    digest = body.secret.removeprefix("sha256:")
    if body.engine != token.engine:
        raise FlorinError(
            "invalid_value", f"This token is for engine {token.engine}, and no other.", param="engine"
        )
    now = state.clock.now()
    key = Key(secrets.token_hex(6), "", Role.ENGINE, digest, now, engine=token.engine, pins=token.pins)

    async def plan(reading: RegistryReading) -> tuple[list[Change], Key]:
        mine = reading.directory.keys.get(token.id)
        if mine is None or mine.revoked is not None:
            raise FlorinError("revoked_api_key", USED_UP)
        if reading.directory.knows(digest) or state.directory.knows(digest):
            raise ConflictError("Another key has this secret: each needs its own.")
        earlier = [k for k in reading.directory.keys.values() if _works_for(k, token.engine)]
        changes = [
            reading.change("key", k.id, dump(replace(k, revoked=now)), dump(k)) for k in (mine, *earlier)
        ]
        return [*changes, Change("key", key.id, dump(key), expect=None)], key

    made = await change(state, plan, audit=_note(token, key))
    return key_json(made)


def _note(token: Key, key: Key) -> AuditNote:
    return AuditNote(f"key:{token.id}", "token.use", token.engine, details={"key": key.id})


def _works_for(key: Key, engine: str) -> bool:
    return key.role is Role.ENGINE and key.engine == engine and key.revoked is None


def _stale(key: Key, engine: str, now: int) -> bool:
    """Tokens that a new one makes superfluous, and those of long ago."""
    if key.role is not Role.ENROLMENT:
        return False
    ended = key.revoked or key.expires or now
    return key.engine == engine or ended < now - _KEPT_MICROS
