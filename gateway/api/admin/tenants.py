"""/admin/v1/tenants"""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Response
from pydantic import Field

from adapters.errors import NotFoundError
from gateway.api.admin.common import Operator
from gateway.api.admin.keys import key_json
from gateway.api.dependencies import Actor, StateDep
from gateway.operations import tenants
from gateway.operations.inputs import StrictBody
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.tenants.directory import Tenant

router = APIRouter(prefix="/tenants", tags=["tenants"], dependencies=[Operator])


class NewTenant(StrictBody):
    name: str = Field(description="1 to 63 of a-z, 0-9, '-' and '_'.", examples=["acme"])
    base_access: bool | None = Field(
        None,
        description="May call the base model itself. Left out: false, or as it is for a tenant that exists.",
    )


@router.post("", status_code=201)
async def add_tenant(body: NewTenant, state: StateDep, actor: Actor, response: Response) -> Json:
    """Add a tenant, or change one: 201 when it is new, 200 when it existed."""
    tenant, created = await tenants.put(state, body.name, base_access=body.base_access, actor=actor)
    response.status_code = 201 if created else 200
    return asdict(tenant)


@router.get("")
async def list_tenants(state: StateDep) -> Json:
    """All tenants, by name."""
    return {"data": [asdict(t) for _, t in sorted(state.directory.tenants.items())]}


@router.get("/{name}")
async def show_tenant(name: str, state: StateDep) -> Json:
    """One tenant with its adapters and keys, but never the keys themselves."""
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
