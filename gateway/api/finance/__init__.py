"""/finance/v1/…: what was used and what it cost. Role finance or operator; a tenant's key sees its own rows
and nothing else. One module a noun, each thin."""

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
for noun in (bills, compare, costs, export, periods, reconciliation, set_aside, statement, usage):
    router.include_router(noun.router)
