"""What a month's traffic would cost on other GPU types and purchase models."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance.common import Tagged, only_staff
from gateway.costs.periods import PeriodError, iso
from gateway.costs.periods import month as whole_month
from gateway.costs.reports.compare_report import CompareError, compare_month
from gateway.costs.rollups.rollup import roll
from gateway.errors import FlorinError

router = APIRouter(route_class=Tagged)

_ROLL_SECONDS = 10.0


@router.get("/compare")
async def compare(
    *,
    key: FinanceKey,
    state: StateDep,
    month: Annotated[str | None, Query(description="`2026-11`; default: last month.")] = None,
    gpu_type: Annotated[
        list[str], Query(max_length=50, description="Repeatable; default: all types in the price book.")
    ] = [],  # noqa: B006  # FastAPI only reads it
    reference: Annotated[
        str | None, Query(max_length=63, description="GPU type; default: the one with the most hours.")
    ] = None,
) -> dict[str, Any]:
    """Total and effective cost of the month's work on each GPU of the price book, the cheapest first: without
    idle time (`busy_cost`), and with the actual share of idle time (`loaded_cost`). `speedup_is` says whether
    a speed was measured, stated, or is unknown. Requires role finance or operator."""
    only_staff(key)
    now = state.clock.now()
    of = month or iso(whole_month(iso(now)[:7]).start - 1)[:7]
    try:
        whole_month(of)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
    complete = await state.meter.flush()
    await state.ledger_process.run(roll, now, patience=_ROLL_SECONDS)
    try:
        found = await state.ledger_process.run(
            compare_month, of, gpu_types=tuple(gpu_type), reference=reference, now=now
        )
    except CompareError as error:
        raise FlorinError("invalid_value", error.message, param=error.param) from error
    return {**found, "complete": complete}
