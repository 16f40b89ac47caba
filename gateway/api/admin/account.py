"""GET /admin/v1/account: a tenant's view of itself."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from adapters.errors import StoreUnavailableError
from gateway.api.dependencies import CustomerKey, StateDep
from gateway.operations import limits, quotas, tenants
from gateway.operations.queues import queue_of
from gateway.operations.transaction import Json
from gateway.tenants.directory import Role, as_json

router = APIRouter(tags=["keys"])

_OWN: Final = ("name", "base_access", "limits", "budget", "quotas", "policy", "cost_centre", "created")
"""What a tenant sees of its terms: nothing about engines and other tenants."""


@router.get("/account")
async def show_account(key: CustomerKey, state: StateDep) -> Json:
    """The tenant of this request's key: its terms, in `usage` what it uses of its limits and budgets (null
    while Redis is away), in `quota_use` what it has registered, its queue, and the last errors of its
    requests, newest first, and the `currency` of amounts (empty if there is no price yet, or the ledger does
    not say in time). A key of role `tenant` sees the errors of its own requests only."""
    tenant = tenants.find(state, key.tenant)
    errors = await tenants.last_errors(state, tenant)
    if key.role is not Role.TENANT_ADMIN:
        errors = [error for error in errors if error["key"] == key.id]
    try:
        used = await limits.usage(state, tenant)
    except StoreUnavailableError:
        used = None
    queue = queue_of(state, tenant.name)
    terms = as_json(tenant)
    return {name: terms[name] for name in _OWN} | {
        "usage": used,
        "quota_use": quotas.quotas_json(tenant.quotas, quotas.use(state, tenant.name)),
        "queue": {"waiting": queue.waiting, "longest_wait": queue.longest_wait},
        "errors": errors,
        "currency": await state.currency.get(state.ledger),
    }
