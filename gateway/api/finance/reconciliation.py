"""Reconciles usage records with engine counters, GPU-hours with the bill, and the ledger with itself."""

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
    month: Annotated[str | None, Query(description="`2026-11`; default: this month to date.")] = None,
    tolerance: Annotated[
        Decimal,
        Query(  # few places only: converting 1e-999999 to a fraction would take hours
            ge=0, le=100, decimal_places=9, description="Percentage of each total that may be unexplained."
        ),
    ] = Decimal(TOLERANCE.numerator) / TOLERANCE.denominator,
) -> dict[str, Any]:
    """Every difference, with its cause. `unexplained` describes each one that exceeds the tolerance; `ok` is
    true if there is none. Requires role finance or operator. Reads all records of the month."""
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
