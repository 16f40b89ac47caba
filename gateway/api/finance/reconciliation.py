"""Reconciles records with the engines' counters, and GPU-hours with the bill."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance.common import Tagged, month_of
from gateway.costs.periods import iso
from gateway.costs.reconciliation.reconcile import TOLERANCE, reconcile
from gateway.operations.ledger_refresh import refresh

router = APIRouter(route_class=Tagged)


@router.get("/reconciliation")
async def reconciliation(
    *,
    _: StaffKey,
    state: StateDep,
    month: Annotated[str | None, Query(description="`2026-11`. Default: this month so far.")] = None,
    tolerance: Annotated[
        Decimal,
        Query(  # few decimal places, because the fraction of 1e-999999 would take hours
            ge=0, le=100, decimal_places=9, description="Percentage that may remain unexplained."
        ),
    ] = Decimal(TOLERANCE.numerator) / TOLERANCE.denominator,
) -> dict[str, Any]:
    """Compare usage with engine counters and bills. Each difference is a line with its cause; `unexplained`
    has a sentence for each that exceeds the tolerance, and `ok` is true if there is none. Role finance or
    operator. Reads the month's records."""
    now = state.clock.now()
    of = month_of(month or iso(now)[:7])
    complete = await refresh(state, state.ledger_process)
    found = await state.ledger_process.aside().run(reconcile, of, tolerance=Fraction(tolerance), now=now)
    return {**found, "complete": complete}
