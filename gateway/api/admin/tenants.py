"""/admin/v1/tenants"""

from __future__ import annotations

from dataclasses import asdict, replace

from fastapi import APIRouter, Response
from pydantic import Field

from adapters.errors import ConflictError, NotFoundError
from adapters.model import check_name
from adapters.store import Change
from gateway.api.admin.common import ATTEMPTS, Body, Json, Operator, catch_up, commit, now_micros
from gateway.api.admin.keys import key_json
from gateway.api.deps import State, StateDep
from gateway.tenants.directory import Tenant, dump

router = APIRouter(prefix="/tenants", tags=["tenants"], dependencies=[Operator])


class NewTenant(Body):
    name: str = Field(description="1 to 63 of a-z, 0-9, '-' and '_'.", examples=["acme"])
    base_access: bool | None = Field(
        None,
        description="May call the base model itself. Left out: false, or as it is for a tenant that exists.",
    )


@router.post("", status_code=201)
async def add_tenant(body: NewTenant, state: StateDep, response: Response) -> Json:
    """Add a tenant, or change one: 201 when it is new, 200 when it existed."""
    check_name("tenant", body.name)
    for _ in range(ATTEMPTS):
        old = state.directory.tenants.get(body.name)
        if old is None:
            wanted = Tenant(body.name, bool(body.base_access), now_micros())
        else:
            response.status_code = 200
            wanted = replace(
                old, base_access=old.base_access if body.base_access is None else body.base_access
            )
        if wanted == old:
            return asdict(wanted)
        try:
            await commit(
                state, [Change("tenant", body.name, dump(wanted), None if old is None else dump(old))]
            )
        except ConflictError:
            await catch_up(state)
        else:
            return asdict(wanted)
    raise ConflictError(f"Tenant {body.name} is being changed by somebody else: try again.")


@router.get("")
async def list_tenants(state: StateDep) -> Json:
    return {"data": [asdict(t) for _, t in sorted(state.directory.tenants.items())]}


@router.get("/{name}")
async def show_tenant(name: str, state: StateDep) -> Json:
    tenant = find_tenant(state, name)
    return {
        **asdict(tenant),
        "adapters": sorted(a for a in state.catalog.adapters if a.startswith(f"{name}/")),
        "keys": [key_json(k) for k in state.directory.keys.values() if k.tenant == name],
    }


def find_tenant(state: State, name: str) -> Tenant:
    tenant = state.directory.tenants.get(name)
    if tenant is None:
        raise NotFoundError(f"There is no tenant {name[:80]!r}.")
    return tenant
