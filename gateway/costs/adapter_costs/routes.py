"""What each adapter costs besides its requests."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import From, Month, Tagged, To, period_of
from gateway.costs.adapter_costs.adapter_report import adapter_report
from gateway.costs.adapter_costs.schemas import AdapterCostReport
from gateway.operations.ledger_refresh import completeness, refreshed

router = APIRouter(route_class=Tagged)


@router.get("/adapters", response_model_exclude_unset=True)
async def adapters(
    *, _: StaffKey, state: StateDep, start: From = None, to: To = None, month: Month = None
) -> AdapterCostReport:
    """By adapter: its requests and their cost, its loads and theirs, and the slots of engines that it
    held."""
    now = state.clock.now()
    within = period_of(start, to, month, now)
    lacks = await refreshed(state, state.ledger_process, within)
    report = await state.ledger_process.run(adapter_report, within, now=now)
    return AdapterCostReport.read(report | completeness(state, lacks, report))
