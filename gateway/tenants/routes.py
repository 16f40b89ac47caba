"""/admin/v1/tenants"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from gateway.api.admin_requests import Controlled, Operator, listed
from gateway.api.dependencies import Actor, ControllerKey, StateDep
from gateway.fleet.adapters.operations import quotas
from gateway.fleet.adapters.routes.answers import adapter_answer
from gateway.operations.authorization import READER, actor_of, check_role
from gateway.operations.known_tenants import used_before
from gateway.schemas.base import Listed
from gateway.tenants.directory import Role
from gateway.tenants.keys.routes import keys_of
from gateway.tenants.operations import limit_dry_run, limits, tenants
from gateway.tenants.operations.limits import queue_of
from gateway.tenants.schemas.limit_dry_run import LimitDryRun, LimitsToTry
from gateway.tenants.schemas.tenants import (
    AddedTenant,
    ChangedTenant,
    NewTenant,
    RemovedTenant,
    Tenant,
    TenantPage,
)
from gateway.tenants.schemas.terms import TenantTerms

router = APIRouter(prefix="/tenants", tags=["tenants"], dependencies=[Operator])
controlled = APIRouter(prefix="/tenants", tags=["tenants"], dependencies=[Controlled])


_USED_BEFORE = (
    "The name {name} was an earlier tenant's. The keys of the new one see usage from now on; reports for "
    "finance, and this month's statement if both have usage in it, cover both."
)


@router.post("", status_code=201)
async def add_tenant(
    *,
    body: NewTenant,
    state: StateDep,
    actor: Actor,
    response: Response,
    new_only: Annotated[bool, Query(description="Refuse to change an existing tenant.")] = False,
) -> AddedTenant:
    """Add a tenant (201) or change an existing one (200), as PATCH does; with `new_only`, 409 `conflict` if
    it exists."""
    tenant, created = await tenants.put(state, body.name, body, actor=actor, new_only=new_only)
    response.status_code = 201 if created else 200
    used = await used_before(state, tenant.name) if created else None
    warnings = tenants.unmet(state.catalog, tenant)
    if used:
        warnings.append(_USED_BEFORE.format(name=tenant.name))
    return AddedTenant.of(tenant, warnings=warnings, name_used_before=used)


@router.patch("/{name}")
async def update_tenant(name: str, body: TenantTerms, state: StateDep, actor: Actor) -> ChangedTenant:
    """Change a tenant. What is omitted stays, also within `limits`, `budget`, `quotas` and `policy`; null
    restores a default: for a limit, none. Changes hold from the next request on. Requests of a suspended
    tenant get 403 `tenant_suspended`; those that are running end normally. Adapters on engines that do not
    meet new requirements are no longer used there, and are unloaded."""
    tenant, _ = await tenants.put(state, name, body, actor=actor, update=True)
    return ChangedTenant.of(tenant, warnings=tenants.unmet(state.catalog, tenant))


@controlled.get("", response_model=Listed[Tenant])
async def list_tenants(state: StateDep) -> Response:
    """All tenants, by name."""
    by_name = [tenant for _, tenant in sorted(state.directory.tenants.items())]
    return await listed(by_name, Tenant.of)


@router.get("/{name}", response_model_exclude_unset=True)
async def show_tenant(name: str, state: StateDep) -> TenantPage:
    """A tenant's page: its terms and what it uses of them, its place in the fair queue, its adapters and
    where they are loaded, its keys with their last uses (not the keys themselves), and the last errors of its
    requests."""
    tenant = tenants.find(state, name)
    adapters = (a for name, a in sorted(state.catalog.adapters.items()) if name.startswith(f"{tenant.name}/"))
    keys = sorted((k for k in state.directory.keys.values() if k.tenant == name), key=lambda k: k.created)
    return TenantPage.of(
        tenant,
        usage=await limits.usage(state, tenant),
        quota_use=quotas.use(state, tenant),
        queue=queue_of(state, name),
        adapters=[adapter_answer(state, adapter, READER) for adapter in adapters],
        keys=await keys_of(state, keys, READER),
        errors=await tenants.last_errors(state, tenant),
        currency=await state.currency.get(state.ledger),
    )


@router.post("/{name}/limits-dry-run")
async def try_limits(name: str, body: LimitsToTry, state: StateDep) -> LimitDryRun:
    """What limits would have refused of a tenant's requests in the last days. Changes nothing. An
    approximation: each limit is replayed alone, over the usage records, as if a client that is refused did
    not come again; requests that were refused then are in no record."""
    return await limit_dry_run.dry_run(state, tenants.find(state, name), body)


@controlled.delete("/{name}")
async def remove_tenant(
    *,
    name: str,
    state: StateDep,
    key: ControllerKey,
    dry_run: Annotated[
        bool, Query(description="Only tell what stands in the way, and what is still to be charged.")
    ] = False,
    cascade: Annotated[
        bool,
        Query(
            description="First revoke its valid keys, end the sharing of others' adapters with it, and "
            "remove its adapters: all of `obstacles`. Not for a controller."
        ),
    ] = False,
) -> RemovedTenant:
    """Remove a tenant with its revoked and expired keys; its usage stays in the ledger, and its rate card
    ends with this month. Refused with 409 `in_use` while it has adapters or valid keys, or adapters are
    shared with it, unless `cascade` says to remove those, too. Repeating this changes nothing, and completes
    a removal that was interrupted."""
    if cascade:
        check_role(key, Role.OPERATOR)
    charges = await tenants.charges_to_come(state, name)
    if cascade and not dry_run:
        there, obstacles = await tenants.remove_all(state, name, actor=actor_of(key))
    else:
        there, obstacles = await tenants.remove(state, name, actor=actor_of(key), dry_run=dry_run)
    return RemovedTenant(
        tenant=name,
        removed=there and not dry_run,
        exists=there,
        obstacles=tuple(obstacles),
        charges=charges,
    )
