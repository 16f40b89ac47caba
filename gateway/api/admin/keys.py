"""/admin/v1/keys"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from gateway.api.admin.common import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.operations import keys
from gateway.operations.enrolment import pins_json
from gateway.operations.inputs import StrictBody
from gateway.operations.transaction import Json
from gateway.tenants.directory import Key, Role

router = APIRouter(prefix="/keys", tags=["keys"], dependencies=[Operator])


class NewKey(StrictBody):
    tenant: str = Field("", description="Whose key it is; needed for role tenant.", examples=["acme"])
    role: Role = Field(Role.TENANT, description="What it may do; enrolment tokens are made elsewhere.")
    engine: str = Field("", description="The one engine that a key of role engine is for.", examples=["a1"])


@router.post("", status_code=201)
async def create_key(body: NewKey, state: StateDep, actor: Actor) -> Json:
    """The answer holds the key itself, this once: only its hash is kept."""
    key, text = await keys.create(state, tenant=body.tenant, role=body.role, engine=body.engine, actor=actor)
    return {"id": key.id, "key": text, "tenant": key.tenant, "role": key.role, "engine": key.engine}


@router.get("")
async def list_keys(state: StateDep, tenant: Annotated[str | None, Query()] = None) -> Json:
    """All keys, or one tenant's, but never the keys themselves."""
    found = sorted(state.directory.keys.values(), key=lambda k: (k.tenant, k.created))
    return {"data": [key_json(k) for k in found if tenant in (None, k.tenant)]}


@router.delete("/{key_id}")
async def revoke_key(key_id: str, state: StateDep, actor: Actor) -> Json:
    """Every worker refuses the key within a second. A second time changes nothing. The engine that was
    registered with the key is drained: it is sent no new requests until an operator makes it active."""
    return key_json(await keys.revoke(state, key_id, actor=actor))


def key_json(key: Key) -> Json:
    """Never its hash."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "role": key.role,
        "engine": key.engine,
        "pins": pins_json(key.pins),
        "created": key.created,
        "expires": key.expires,
        "revoked": key.revoked,
    }
