"""What was used and what it cost, grouped."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.api.deps import FinanceKey, StateDep
from gateway.api.finance.common import From, Month, Tenant, To, dimensions_of, period_of, tenants_of
from gateway.costs.report import DEFAULT_BY, DIMENSIONS, cost_report

router = APIRouter()


@router.get("/costs")
async def costs(
    *,
    key: FinanceKey,
    state: StateDep,
    by: Annotated[str, Query(description=f"Of {', '.join(DIMENSIONS)}, by commas.")] = ",".join(DEFAULT_BY),
    start: From = None,
    to: To = None,
    month: Month = None,
    tenant: Tenant = None,
) -> dict[str, Any]:
    """Requests, tokens, GPU-time and cost, grouped. This month if no time is given. `cost` is an exact
    decimal, or null where a price is missing; `missing_prices` says of which GPU types. `complete` is false
    while this worker brings a backlog of records into the ledger."""
    dimensions = dimensions_of(by, DIMENSIONS)
    within = period_of(start, to, month)
    complete = await state.meter.flush()
    report = await state.books.run(cost_report, within, by=dimensions, tenants=tenants_of(key, tenant))
    return {**report, "complete": complete}
