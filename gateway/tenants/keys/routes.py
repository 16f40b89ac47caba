"""/admin/v1/keys"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query

from gateway.api.admin_requests import Managed
from gateway.api.dependencies import Manager, StateDep
from gateway.fleet.engines.operations.enrolment import pins_json
from gateway.operations.authorization import Authority
from gateway.operations.state import State
from gateway.schemas.base import Listed
from gateway.tenants import directory
from gateway.tenants.keys import operations as keys
from gateway.tenants.keys.schemas import CreatedKey, EnginePins, Key, KeyFields, NewKey, RotatedKey, Rotation

K = TypeVar("K", bound=Key)

router = APIRouter(prefix="/keys", tags=["keys"], dependencies=[Managed])


@router.post("", status_code=201, response_model_exclude_unset=True)
async def create_key(body: NewKey, state: StateDep, authority: Manager) -> CreatedKey:
    """Create a key. Only this response contains the key itself; Florin stores its hash. Scopes, limits, a
    budget and a priority are for keys of the roles tenant and tenant-admin. A key of role `tenant-admin`
    creates keys of these two roles for its own tenant, with no wider scopes, limits and budget than its own,
    and with its own priority."""
    key, text = await keys.create(state, body, authority=authority)
    return key_as(CreatedKey, key, authority, key=text)


@router.get("", response_model_exclude_unset=True)
async def list_keys(
    state: StateDep, authority: Manager, tenant: Annotated[str | None, Query()] = None
) -> Listed[Key]:
    """All keys that the caller may see, or one tenant's, without the keys themselves."""
    visible = [k for k in keys.visible(state, authority) if tenant in (None, k.tenant)]
    return Listed(data=tuple(await keys_of(state, visible, authority)))


@router.get("/{key_id}", response_model_exclude_unset=True)
async def show_key(key_id: str, state: StateDep, authority: Manager) -> Key:
    """One key, without the key itself."""
    (key,) = await keys_of(state, [keys.find(state, key_id, authority)], authority)
    return key


@router.patch("/{key_id}", response_model_exclude_unset=True)
async def update_key(key_id: str, body: KeyFields, state: StateDep, authority: Manager) -> Key:
    """Change a key's label, expiry, scopes, limits, budget or priority. What is omitted stays, also within
    `scopes`, `limits` and `budget`; null restores a default. Owner and role never change. A revoked key gets
    409 `conflict`."""
    return key_as(Key, await keys.update(state, key_id, body, authority=authority), authority)


@router.post("/{key_id}/rotate", status_code=201, response_model_exclude_unset=True)
async def rotate_key(key_id: str, body: Rotation, state: StateDep, authority: Manager) -> RotatedKey:
    """Replace a key by a new one with the same owner, role, label, scopes, limits, budget and priority. The
    old one, in `replaced`, expires after `overlap`. A key that was rotated already gets 409 `conflict` while
    its successor is valid: so a repeated request creates no second key."""
    new, text, old = await keys.rotate(state, key_id, body, authority=authority)
    return key_as(RotatedKey, new, authority, key=text, replaced=key_as(Key, old, authority))


@router.delete("/{key_id}", response_model_exclude_unset=True)
async def revoke_key(key_id: str, state: StateDep, authority: Manager) -> Key:
    """Revoke a key. Every worker refuses it within a second; repeating this changes nothing. An engine
    registered with the key is drained: it gets no new requests until an operator sets it to active."""
    return key_as(Key, await keys.revoke(state, key_id, authority=authority), authority)


async def keys_of(state: State, keys: Sequence[directory.Key], authority: Authority) -> list[Key]:
    """Keys with their last uses."""
    uses = await state.lifecycle.activity.last_uses([key.id for key in keys])
    return [key_as(Key, key, authority, last_used=uses.get(key.id)) for key in keys]


def key_as(answer: type[K], key: directory.Key, authority: Authority, /, **more: object) -> K:
    """With `more`. A tenant's keys have neither engines nor pins."""
    hidden = {"engine", "pins"} if authority.tenant is not None else set()
    more |= {"pins": EnginePins.model_validate(pins_json(key.pins))}
    same = {name: getattr(key, name) for name in answer.model_fields if hasattr(key, name)}
    return answer.model_validate({n: value for n, value in (same | more).items() if n not in hidden})
