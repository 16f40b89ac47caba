"""/finance/v1/…: usage and costs. Requires the finance or operator role; a tenant's key sees only its own
rows. One thin module per resource."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.finance import (
    adapter_costs,
    ahead,
    bills,
    budgets,
    commitments,
    compare,
    costs,
    energy,
    events,
    export,
    margin,
    periods,
    policy,
    provisioned_time,
    quarantine,
    rate_cards,
    reconciliation,
    set_aside,
    statement,
    true_ups,
    usage,
)

router = APIRouter(prefix="/finance/v1", tags=["finance"])
for noun in (
    adapter_costs,
    ahead,
    bills,
    budgets,
    commitments,
    compare,
    costs,
    energy,
    events,
    export,
    margin,
    periods,
    policy,
    provisioned_time,
    quarantine,
    rate_cards,
    reconciliation,
    set_aside,
    statement,
    true_ups,
    usage,
):
    router.include_router(noun.router)
