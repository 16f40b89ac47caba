"""Reconciliation of records with the engines' counters and of GPU-hours with the bill."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance.common import Tagged, only_staff
from gateway.costs.periods import PeriodError, iso
from gateway.costs.periods import month as whole_month
from gateway.costs.reconciliation.reconcile import TOLERANCE, reconcile
from gateway.costs.rollups.rollup import roll
from gateway.errors import FlorinError

router = APIRouter(route_class=Tagged)

_ROLL_SECONDS = 10.0


@router.get("/reconciliation")
async def reconciliation(
    *,
    key: FinanceKey,
    state: StateDep,
    month: Annotated[str | None, Query(description="`2026-11`. Default: this month so far.")] = None,
    tolerance: Annotated[
        Decimal,
        Query(  # of few places: 1e-999999 is a number, and its fraction hours of work
            ge=0, le=100, decimal_places=9, description="Percentage that may remain unexplained."
        ),
    ] = Decimal(TOLERANCE.numerator) / TOLERANCE.denominator,
) -> dict[str, Any]:
    """Compare usage with engine counters and bills. Each difference is a line with its cause; `unexplained`
    has a sentence for each that exceeds the tolerance, and `ok` is true if there is none. Role finance or
    operator. Reads the month's records."""
    only_staff(key)
    now = state.clock.now()
    of = month or iso(now)[:7]
    try:
        whole_month(of)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
    complete = await state.meter.flush()
    await state.ledger_process.run(roll, now, patience=_ROLL_SECONDS)
    found = await state.ledger_process.aside().run(reconcile, of, tolerance=Fraction(tolerance), now=now)
    return {**found, "complete": complete}
