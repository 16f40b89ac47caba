"""GET /admin/v1/me: what a key is, what it may do, and what is used of it. For every role."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from gateway.api.dependencies import AnyKey, StateDep
from gateway.operations import quotas
from gateway.operations.transaction import Json
from gateway.tenants.directory import as_json

router = APIRouter(tags=["keys"])

_OF_KEY: Final = (
    *("id", "label", "role", "tenant", "engine", "created", "expires"),
    *("scopes", "limits", "budget", "priority"),
)
_OF_TENANT: Final = ("base_access", "limits", "budget")


@router.get("/me")
async def show_me(key: AnyKey, state: StateDep) -> Json:
    """The key of this request, with its scopes and limits. `tenant_terms`, for a tenant's key: the tenant's
    limits, budget and quotas, each quota with what is used of it."""
    tenant = state.directory.tenants.get(key.own_tenant or "")
    shown = _some(as_json(key), _OF_KEY)
    if tenant is None:
        return shown | {"tenant_terms": None}
    used = quotas.quotas_json(tenant.quotas, quotas.use(state, tenant.name))
    return shown | {"tenant_terms": _some(as_json(tenant), _OF_TENANT) | {"quotas": used}}


def _some(whole: Json, names: tuple[str, ...]) -> Json:
    return {name: whole[name] for name in names}
