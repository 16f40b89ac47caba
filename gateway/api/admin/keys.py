"""/admin/v1/keys"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from gateway.api.admin.common import Managed
from gateway.api.dependencies import Manager, StateDep
from gateway.operations import keys
from gateway.operations.authorization import Authority
from gateway.operations.enrolment import pins_json
from gateway.operations.state import State
from gateway.operations.terms import KeyTerms
from gateway.operations.transaction import Json
from gateway.schemas.base import Address, StrictBody
from gateway.tenants.directory import Key, Role, as_json

router = APIRouter(prefix="/keys", tags=["keys"], dependencies=[Managed])

_EXPIRES = "A duration such as `90d`, or an ISO 8601 date or time, UTC; null: never."
Moment = Annotated[str, Field(max_length=64, examples=["90d"])]


class NewKey(KeyTerms):
    tenant: str = Field(
        "",
        description="Tenant that owns the key. Default: the caller's own, if it has one.",
        examples=["acme"],
    )
    role: Role = Field(Role.TENANT, description="Role of the key. Enrolment tokens have their own route.")
    engine: str = Field(
        "", description="Engine that the key is for; required for role engine.", examples=["a1"]
    )
    address: Address | None = Field(
        None,
        description="For role engine: pinned host name or IP address in the engine's URLs; null: the address "
        "that its host connects from.",
        examples=["a1.engines.internal"],
    )
    expires: Moment | None = Field(None, description=_EXPIRES)


class KeyFields(KeyTerms):
    expires: Moment | None = Field(None, description=_EXPIRES)


class Rotation(StrictBody):
    overlap: Moment = Field("24h", description="How long the old key stays valid; at most 30d.")
    expires: Moment | None = Field(
        None, description="Of the new key. Omitted: it is valid for as long as the old one was."
    )


@router.post("", status_code=201)
async def create_key(body: NewKey, state: StateDep, authority: Manager) -> Json:
    """Create a key. Only this response contains the key itself; Florin stores its hash. Scopes, limits, a
    budget and a priority are for keys of the roles tenant and tenant-admin. A key of role `tenant-admin`
    creates keys of these two roles for its own tenant, with no wider scopes, limits and budget than its own,
    and with its own priority."""
    key, text = await keys.create(
        state,
        tenant=body.tenant,
        role=body.role,
        engine=body.engine,
        address=body.address,
        expires=body.expires,
        terms=body,
        authority=authority,
    )
    return {**shown_key(key, authority), "key": text}


@router.get("")
async def list_keys(
    state: StateDep, authority: Manager, tenant: Annotated[str | None, Query()] = None
) -> Json:
    """All keys that the caller may see, or one tenant's, without the keys themselves. `last_used`: within the
    last ten seconds or so, uses may be missing; null: not known."""
    found = [k for k in keys.visible(state, authority) if tenant in (None, k.tenant)]
    return {"data": await keys_json(state, found, authority)}


@router.get("/{key_id}")
async def show_key(key_id: str, state: StateDep, authority: Manager) -> Json:
    """One key, without the key itself."""
    (shown,) = await keys_json(state, [keys.find(state, key_id, authority)], authority)
    return shown


@router.patch("/{key_id}")
async def update_key(key_id: str, body: KeyFields, state: StateDep, authority: Manager) -> Json:
    """Change a key's label, expiry, scopes, limits, budget or priority. What is omitted stays, also within
    `scopes`, `limits` and `budget`; null restores a default. Owner and role never change. A revoked key gets
    409 `conflict`."""
    given = {"expires": body.expires} if "expires" in body.model_fields_set else {}
    return shown_key(await keys.update(state, key_id, body, authority=authority, **given), authority)


@router.post("/{key_id}/rotate", status_code=201)
async def rotate_key(key_id: str, body: Rotation, state: StateDep, authority: Manager) -> Json:
    """Replace a key by a new one with the same owner, role, label, scopes, limits, budget and priority. The
    old one, in `replaced`, expires after `overlap`. A key that was rotated already gets 409 `conflict` while
    its successor is valid: so a repeated request creates no second key."""
    new, text, old = await keys.rotate(
        state, key_id, overlap=body.overlap, expires=body.expires, authority=authority
    )
    return {**shown_key(new, authority), "key": text, "replaced": shown_key(old, authority)}


@router.delete("/{key_id}")
async def revoke_key(key_id: str, state: StateDep, authority: Manager) -> Json:
    """Revoke a key. Every worker refuses it within a second; repeating this changes nothing. An engine
    registered with the key is drained: it gets no new requests until an operator sets it to active."""
    return shown_key(await keys.revoke(state, key_id, authority=authority), authority)


def shown_key(key: Key, authority: Authority) -> Json:
    """A tenant's keys have neither engines nor pins."""
    shown = key_json(key)
    if authority.tenant is not None:
        del shown["engine"], shown["pins"]
    return shown


async def keys_json(state: State, found: Sequence[Key], authority: Authority) -> list[Json]:
    """Keys with their last uses."""
    uses = await state.lifecycle.activity.last_uses([key.id for key in found])
    return [{**shown_key(key, authority), "last_used": uses.get(key.id)} for key in found]


def key_json(key: Key) -> Json:
    """Without its hash."""
    shown = as_json(key)
    del shown["digest"]
    return {**shown, "pins": pins_json(key.pins)}
