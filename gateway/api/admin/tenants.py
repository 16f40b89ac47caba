"""/admin/v1/tenants"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from adapters.errors import StoreUnavailableError
from gateway.api.admin.adapter_answers import adapter_answer
from gateway.api.admin.common import Operator
from gateway.api.admin.keys import keys_json
from gateway.api.dependencies import Actor, StateDep
from gateway.operations import limits, quotas, tenant_removal, tenants
from gateway.operations.authorization import READER
from gateway.operations.known_tenants import used_before
from gateway.operations.queues import queue_of
from gateway.operations.state import State
from gateway.operations.terms import TenantTerms
from gateway.operations.transaction import Json
from gateway.tenants.directory import Key, Tenant, as_json

router = APIRouter(prefix="/tenants", tags=["tenants"], dependencies=[Operator])


_USED_BEFORE = (
    "The name {name} was an earlier tenant's. The keys of the new one see usage from now on; reports for "
    "finance, and this month's statement if both have usage in it, cover both."
)


class NewTenant(TenantTerms):
    name: str = Field(description="1 to 63 of a-z, 0-9, '-' and '_'.", examples=["acme"])


@router.post("", status_code=201)
async def add_tenant(
    *,
    body: NewTenant,
    state: StateDep,
    actor: Actor,
    response: Response,
    new_only: Annotated[bool, Query(description="Refuse to change an existing tenant.")] = False,
) -> Json:
    """Add a tenant (201) or change an existing one (200), as PATCH does; with `new_only`, 409 `conflict` if
    it exists. `warnings`: fleets in which no engine meets its requirements, and that the name was an earlier
    tenant's. `name_used_before`: whether the ledger has usage of an earlier tenant of a new one's name; null
    if it could not be asked, or if the tenant is not new."""
    tenant, created = await tenants.put(state, body.name, body, actor=actor, new_only=new_only)
    response.status_code = 201 if created else 200
    used = await used_before(state, tenant.name) if created else None
    shown = _changed(state, tenant)
    if used:
        shown["warnings"] = [*shown["warnings"], _USED_BEFORE.format(name=tenant.name)]
    return {**shown, "name_used_before": used}


@router.patch("/{name}")
async def update_tenant(name: str, body: TenantTerms, state: StateDep, actor: Actor) -> Json:
    """Change a tenant. What is omitted stays, also within `limits`, `budget`, `quotas` and `policy`; null
    restores a default: for a limit, none. Changes hold from the next request on. Requests of a suspended
    tenant get 403 `tenant_suspended`; those that are running end normally. Adapters on engines that do not
    meet new requirements are no longer used there, and are unloaded."""
    tenant, _ = await tenants.put(state, name, body, actor=actor, update=True)
    return _changed(state, tenant)


@router.get("")
async def list_tenants(state: StateDep) -> Json:
    """All tenants, by name."""
    return {"data": [as_json(t) for _, t in sorted(state.directory.tenants.items())]}


@router.get("/{name}")
async def show_tenant(name: str, state: StateDep) -> Json:
    """A tenant's page: its terms and in `usage` what it uses of them, its place in the fair queue, its
    adapters and where they are loaded, its keys with their last uses (not the keys themselves), and the last
    errors of its requests, newest first, and the `currency` of amounts (empty if there is no price
    yet, or the ledger does not say in time). `usage` is null while Redis is away."""
    tenant = tenants.find(state, name)
    return as_json(tenant) | await _page(state, tenant)


@router.delete("/{name}")
async def remove_tenant(
    *,
    name: str,
    state: StateDep,
    actor: Actor,
    dry_run: Annotated[bool, Query(description="Only tell what stands in the way.")] = False,
    cascade: Annotated[
        bool,
        Query(
            description="First revoke its valid keys, end the sharing of others' adapters with it, and "
            "remove its adapters: all of `obstacles`."
        ),
    ] = False,
) -> Json:
    """Remove a tenant with its revoked and expired keys; its usage stays in the ledger. Refused with 409
    `in_use` while it has adapters or valid keys, or adapters are shared with it, unless `cascade` says to
    remove those, too. Repeating this changes nothing, and completes a `cascade` that was interrupted."""
    if cascade and not dry_run:
        there, obstacles = await tenant_removal.remove(state, name, actor=actor)
    else:
        there, obstacles = await tenants.remove(state, name, actor=actor, dry_run=dry_run)
    return {
        "tenant": name,
        "removed": there and not dry_run,
        "exists": there,
        "obstacles": [asdict(obstacle) for obstacle in obstacles],
    }


async def _page(state: State, tenant: Tenant) -> Json:
    """What an operator wants to see of a tenant at one glance. A new section belongs here, and in
    `gateway.commands.tenant_page`."""
    adapters = (a for name, a in sorted(state.catalog.adapters.items()) if name.startswith(f"{tenant.name}/"))
    keys = sorted((k for k in state.directory.keys.values() if k.tenant == tenant.name), key=_created)
    return {
        "usage": await _usage(state, tenant),
        "quota_use": quotas.quotas_json(tenant.quotas, quotas.use(state, tenant.name)),
        "queue": asdict(queue_of(state, tenant.name)),
        "adapters": [adapter_answer(state, adapter, READER).model_dump(mode="json") for adapter in adapters],
        "keys": await keys_json(state, keys, READER),
        "errors": await tenants.last_errors(state, tenant),
        "currency": await state.currency.get(state.ledger),
    }


async def _usage(state: State, tenant: Tenant) -> list[Json] | None:
    try:
        return await limits.usage(state, tenant)
    except StoreUnavailableError:
        return None


def _created(key: Key) -> int:
    return key.created


def _changed(state: State, tenant: Tenant) -> Json:
    return {**as_json(tenant), "warnings": tenants.unmet(state.catalog, tenant)}
