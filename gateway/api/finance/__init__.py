"""/finance/v1/…: usage and costs, for roles finance and operator. A tenant's key sees its own rows only.

One thin module per resource.
"""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.finance import (
    bills,
    compare,
    costs,
    export,
    periods,
    reconciliation,
    set_aside,
    statement,
    usage,
)

router = APIRouter(prefix="/finance/v1", tags=["finance"])
for resource in (bills, compare, costs, export, periods, reconciliation, set_aside, statement, usage):
    router.include_router(resource.router)
