"""What each adapter costs besides its requests."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance.common import From, Month, Tagged, To, period_of
from gateway.costs.adapter_costs.adapter_report import adapter_report
from gateway.operations.ledger_refresh import completeness, refresh

router = APIRouter(route_class=Tagged)


@router.get("/adapters")
async def adapters(
    *, _: StaffKey, state: StateDep, start: From = None, to: To = None, month: Month = None
) -> dict[str, Any]:
    """By adapter: its requests and their cost, its loads and theirs (null without a calibration), the hours
    in which it held slots of engines, and these slots' equal share of the engines' cost. That share is not
    spent additionally: an engine costs the same with an empty slot. `rare`: adapters with fewer than ten
    requests a day."""
    now = state.clock.now()
    within = period_of(start, to, month, now)
    complete = await refresh(state, state.ledger_process)
    return {
        **await state.ledger_process.run(adapter_report, within, now=now),
        **completeness(state, complete=complete),
    }
