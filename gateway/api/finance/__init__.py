"""/finance/v1/…: usage and costs. Requires the finance or operator role; a tenant's key sees only its own
rows. One thin module per resource."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.finance import (
    bills,
    compare,
    costs,
    export,
    periods,
    provisioned_time,
    quarantine,
    reconciliation,
    set_aside,
    statement,
    usage,
)

router = APIRouter(prefix="/finance/v1", tags=["finance"])
for noun in (
    *(bills, compare, costs, export, periods, provisioned_time, quarantine, reconciliation, set_aside),
    *(statement, usage),
):
    router.include_router(noun.router)
