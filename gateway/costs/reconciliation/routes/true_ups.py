"""True-ups: a month's cost becomes the invoice's."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from fastapi import APIRouter, Path, Response

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import Tagged, month_of
from gateway.costs.reconciliation.operations import reconciliation
from gateway.costs.reconciliation.routes.reconciliation import DEFAULT_TOLERANCE, Tolerance
from gateway.costs.reconciliation.schemas.reconciliation import InvoicedMonth, RecordedTrueUp, TrueUps
from gateway.costs.reconciliation.true_up_store import show_true_up
from gateway.operations.ledger_refresh import refresh

router = APIRouter(prefix="/true-ups", route_class=Tagged)

Month = Annotated[str, Path(description="`2026-11`")]


@router.get("/{month}", response_model_exclude_unset=True)
async def show(
    month: Month, _: StaffKey, state: StateDep, tolerance: Tolerance = DEFAULT_TOLERANCE
) -> TrueUps:
    """What a true-up of the month would be now, and those that were recorded."""
    await refresh(state, state.ledger_process)
    true_ups = await state.ledger_process.run(
        show_true_up, month_of(month), tolerance=Fraction(tolerance), now=state.clock.now()
    )
    return TrueUps.read(true_ups)


@router.post("/{month}", status_code=201, response_model_exclude_unset=True)
async def add(
    *,
    month: Month,
    body: InvoicedMonth,
    key: StaffKey,
    state: StateDep,
    response: Response,
) -> RecordedTrueUp:
    """Make the month's cost the imported invoice's, with its credits, taxes and commitments. Each cause of a
    difference becomes a line of its own, which belongs to no tenant; cost at list price and lines sum to the
    invoice, to the cent. 409 while anything is not accepted beyond the tolerance. 200 if the same true-up was
    recorded before."""
    recorded, new = await reconciliation.true_up(
        state,
        month_of(month),
        tolerance=Fraction(body.tolerance),
        invoice=None if body.invoice is None else Fraction(body.invoice),
        key=key,
    )
    if not new:
        response.status_code = 200
    return RecordedTrueUp.read(recorded)
