"""Prices a month's traffic on other GPU types and purchase models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import Tagged, month_of
from gateway.costs.periods import iso
from gateway.costs.periods import month_of as whole_month
from gateway.costs.reports.compare_report import compare_month
from gateway.costs.reports.schemas.comparison import Comparison
from gateway.operations.ledger_refresh import completeness, refreshed

router = APIRouter(route_class=Tagged)


@router.get("/compare", response_model_exclude_unset=True)
async def compare(
    *,
    _: StaffKey,
    state: StateDep,
    month: Annotated[str | None, Query(description="`2026-11`. Default: the last full month.")] = None,
    gpu_type: Annotated[
        list[str], Query(max_length=50, description="Repeatable. Default: all in the price book.")
    ] = [],  # noqa: B006  # FastAPI reads it; it is never modified
    reference: Annotated[
        str | None, Query(max_length=63, description="GPU type. Default: the one with the most hours.")
    ] = None,
) -> Comparison:
    """Total and effective cost of the month's work on each GPU of the price book, cheapest first: without
    idle time (`busy_cost`), and with the month's share of idle time (`loaded_cost`). `speedup_is` says
    whether a speed was measured, stated in the price book, or is unknown. Role finance or operator."""
    now = state.clock.now()
    month_name = month or iso(whole_month(iso(now)[:7]).start - 1)[:7]
    month_of(month_name)
    lacks = await refreshed(state, state.ledger_process, whole_month(month_name))
    report = await state.ledger_process.run(
        compare_month, month_name, gpu_types=tuple(gpu_type), reference=reference, now=now
    )
    return Comparison.read(report | completeness(state, lacks, report))
