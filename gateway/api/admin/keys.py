"""/admin/v1/keys"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from adapters.errors import NotFoundError
from adapters.store import AuditNote, Change
from gateway.api.admin.common import Body, Json, Operator, Reading, change, now_micros
from gateway.api.deps import Actor, StateDep
from gateway.errors import FlorinError
from gateway.tenants.directory import Key, Role, dump, mint

router = APIRouter(prefix="/keys", tags=["keys"], dependencies=[Operator])


class NewKey(Body):
    tenant: str = Field("", description="Whose key it is; needed for role tenant.", examples=["acme"])
    role: Role = Field(Role.TENANT, description="What it may do.")


@router.post("", status_code=201)
async def create_key(body: NewKey, state: StateDep, actor: Actor) -> Json:
    """The answer holds the key itself, this once: only its hash is kept."""
    if body.role is Role.TENANT and not body.tenant:
        raise FlorinError("invalid_value", "A key of role tenant needs a tenant.", param="tenant")
    if body.tenant and body.tenant not in state.directory.tenants:
        raise NotFoundError(f"There is no tenant {body.tenant[:80]!r}: add it first.")
    key, text = mint(body.tenant, body.role, now_micros())

    async def plan(_: Reading) -> tuple[list[Change], None]:
        return [Change("key", key.id, dump(key), expect=None)], None

    await change(state, plan, audit=_note(actor, "key.create", key))
    return {"id": key.id, "key": text, "tenant": key.tenant, "role": key.role}


@router.get("")
async def list_keys(state: StateDep, tenant: Annotated[str | None, Query()] = None) -> Json:
    keys = sorted(state.directory.keys.values(), key=lambda k: (k.tenant, k.created))
    return {"data": [key_json(k) for k in keys if tenant in (None, k.tenant)]}


@router.delete("/{key_id}")
async def revoke_key(key_id: str, state: StateDep, actor: Actor) -> Json:
    """Every worker refuses the key within a second. A second time changes nothing."""
    now = now_micros()

    async def plan(reading: Reading) -> tuple[list[Change], Key]:
        old = reading.directory.keys.get(key_id)
        if old is None:
            raise NotFoundError(f"There is no key {key_id[:80]!r}.")
        if old.revoked is not None:
            return [], old
        new = replace(old, revoked=now)
        return [reading.change("key", old.id, dump(new), dump(old))], new

    return key_json(await change(state, plan, audit=lambda key: _note(actor, "key.revoke", key)))


def _note(actor: str, action: str, key: Key) -> AuditNote:
    return AuditNote(actor, action, key.id, details={"tenant": key.tenant, "role": key.role})


def key_json(key: Key) -> Json:
    """Never its hash."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "role": key.role,
        "created": key.created,
        "revoked": key.revoked,
    }
