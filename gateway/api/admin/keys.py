"""/admin/v1/keys"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from adapters.errors import NotFoundError
from adapters.model import check_name
from adapters.model import dump as dump_engine
from adapters.store.protocol import AuditNote, Change
from gateway.api.admin.common import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.errors import FlorinError
from gateway.operations.inputs import StrictBody
from gateway.operations.transaction import Json, RegistryReading, change
from gateway.tenants.directory import Key, Role, dump, mint

router = APIRouter(prefix="/keys", tags=["keys"], dependencies=[Operator])


class NewKey(StrictBody):
    tenant: str = Field("", description="Whose key it is; needed for role tenant.", examples=["acme"])
    role: Role = Field(Role.TENANT, description="What it may do; enrolment tokens are made elsewhere.")
    engine: str = Field("", description="The one engine that a key of role engine is for.", examples=["a1"])


@router.post("", status_code=201)
async def create_key(body: NewKey, state: StateDep, actor: Actor) -> Json:
    """The answer holds the key itself, this once: only its hash is kept."""
    _check_owner(body)
    if body.tenant and body.tenant not in state.directory.tenants:
        raise NotFoundError(f"There is no tenant {body.tenant[:80]!r}: add it first.")
    key, text = mint(body.tenant, body.role, state.clock.now(), engine=body.engine)

    async def plan(_: RegistryReading) -> tuple[list[Change], None]:
        return [Change("key", key.id, dump(key), expect=None)], None

    await change(state, plan, audit=_note(actor, "key.create", key))
    return {"id": key.id, "key": text, "tenant": key.tenant, "role": key.role, "engine": key.engine}


@router.get("")
async def list_keys(state: StateDep, tenant: Annotated[str | None, Query()] = None) -> Json:
    """All keys, or one tenant's, but never the keys themselves."""
    keys = sorted(state.directory.keys.values(), key=lambda k: (k.tenant, k.created))
    return {"data": [key_json(k) for k in keys if tenant in (None, k.tenant)]}


@router.delete("/{key_id}")
async def revoke_key(key_id: str, state: StateDep, actor: Actor) -> Json:
    """Every worker refuses the key within a second. A second time changes nothing. The engine that was
    registered with the key is drained: it is sent no new requests until an operator makes it active."""
    now = state.clock.now()

    async def plan(reading: RegistryReading) -> tuple[list[Change], Key]:
        old = reading.directory.keys.get(key_id)
        if old is None:
            raise NotFoundError(f"There is no key {key_id[:80]!r}.")
        if old.revoked is not None:
            return [], old
        new = replace(old, revoked=now)
        return [reading.change("key", old.id, dump(new), dump(old)), *cut_off(reading, old)], new

    return key_json(await change(state, plan, audit=lambda key: _note(actor, "key.revoke", key)))


def cut_off(reading: RegistryReading, revoked: Key) -> list[Change]:
    """A host whose key is revoked may be in wrong hands, so prompts are no longer sent to it: its engine is
    drained, in the same commit."""
    engine = reading.catalog.engines.get(revoked.engine) if revoked.role is Role.ENGINE else None
    if engine is None or engine.key != revoked.id or engine.state == "draining":
        return []
    drained = replace(engine, state="draining")
    return [reading.change("engine", engine.name, dump_engine(drained), dump_engine(engine))]


def check_engine(engine: str) -> None:
    """Raises FlorinError, InvalidNameError."""
    if not engine:
        raise FlorinError("invalid_value", "A key of role engine needs an engine.", param="engine")
    check_name("engine", engine)


def _check_owner(body: NewKey) -> None:
    if body.role is Role.ENROLMENT:
        raise FlorinError(
            "invalid_value", "Enrolment tokens are made by `florin engine token create`.", param="role"
        )
    if body.role is Role.TENANT and not body.tenant:
        raise FlorinError("invalid_value", "A key of role tenant needs a tenant.", param="tenant")
    if body.role is Role.ENGINE:
        check_engine(body.engine)
    elif body.engine:
        raise FlorinError("invalid_value", "Only keys of role engine are for an engine.", param="engine")
    if body.tenant and body.role in {Role.ENGINE, Role.METRICS}:
        raise FlorinError("invalid_value", f"A key of role {body.role} is no tenant's.", param="tenant")


def _note(actor: str, action: str, key: Key) -> AuditNote:
    details = {"tenant": key.tenant, "role": key.role}
    return AuditNote(actor, action, key.id, details=details | ({"engine": key.engine} if key.engine else {}))


def key_json(key: Key) -> Json:
    """Never its hash."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "role": key.role,
        "engine": key.engine,
        "pins": {name: value for name, value in asdict(key.pins).items() if value is not None},
        "created": key.created,
        "expires": key.expires,
        "revoked": key.revoked,
    }
