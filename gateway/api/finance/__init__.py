"""/finance/v1/…: usage and costs. Requires the finance or operator role; a tenant's key sees only its own
rows. One thin module per resource."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.finance import (
    bills,
    commitments,
    compare,
    costs,
    export,
    periods,
    reconciliation,
    set_aside,
    statement,
    true_ups,
    usage,
)

router = APIRouter(prefix="/finance/v1", tags=["finance"])
for noun in (
    *(bills, commitments, compare, costs, export, periods, reconciliation, set_aside, statement),
    *(true_ups, usage),
):
    router.include_router(noun.router)
