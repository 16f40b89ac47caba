"""What customers pay less what they cost."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import Tagged, month_of
from gateway.costs.margins.margin import month_margin
from gateway.costs.margins.schemas import MarginReport
from gateway.costs.periods import iso
from gateway.costs.periods import month_of as whole_month
from gateway.operations.ledger_refresh import completeness, refreshed

router = APIRouter(route_class=Tagged)


@router.get("/margin", response_model_exclude_unset=True)
async def margin(
    *,
    _: StaffKey,
    state: StateDep,
    month: Annotated[str | None, Query(description="`2026-11`. Default: this month so far.")] = None,
    by: Annotated[
        Literal["tenant", "adapter"], Query(description="adapter: also `adapters`, which sum to the rows.")
    ] = "tenant",
) -> MarginReport:
    """Price less cost of each tenant in a month, as exact decimals; the total also includes what no tenant is
    charged. Without a rate card, the price is the cost. Role finance or operator."""
    month_name = month_of(month or iso(state.clock.now())[:7])
    lacks = await refreshed(state, state.ledger_process, whole_month(month_name))
    report = await state.ledger_process.run(month_margin, month_name, by_adapter=by == "adapter")
    return MarginReport.read(report | completeness(state, lacks, report))
