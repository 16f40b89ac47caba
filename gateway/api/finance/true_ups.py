"""True-ups: a month's cost becomes the invoice's."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import Field

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance.common import Tagged, month_of
from gateway.api.finance.reconciliation import DEFAULT_TOLERANCE, Tolerance
from gateway.costs.reconciliation.true_up_store import show_true_up
from gateway.operations import reconciliation
from gateway.operations.ledger_refresh import refresh
from gateway.schemas.base import StrictBody

router = APIRouter(prefix="/true-ups", route_class=Tagged)

Month = Annotated[str, Path(description="`2026-11`")]


class Invoice(StrictBody):
    """The invoice that the month's cost becomes."""

    invoice: Annotated[
        str | None,
        Field(
            pattern=r"^-?\d{1,15}(\.\d{1,2})?$",
            description="Its total, if it is to be checked: the imported lines must sum to it.",
            examples=["3032.88"],
        ),
    ] = None
    tolerance: Annotated[
        Decimal, Field(ge=0, le=100, decimal_places=9, description="Percentage that need not be accepted.")
    ] = DEFAULT_TOLERANCE


@router.get("/{month}")
async def show(
    month: Month, _: StaffKey, state: StateDep, tolerance: Tolerance = DEFAULT_TOLERANCE
) -> dict[str, Any]:
    """What a true-up of the month would be now (`preview`; null if `blocked` says why not), and those that
    were recorded, newest first. `current`: whether the newest has the amounts that it would
    have now."""
    await refresh(state, state.ledger_process)
    return await state.ledger_process.run(
        show_true_up, month_of(month), tolerance=Fraction(tolerance), now=state.clock.now()
    )


@router.post("/{month}", status_code=201)
async def add(
    *,
    month: Month,
    invoice: Invoice,
    key: StaffKey,
    state: StateDep,
    response: Response,
) -> dict[str, Any]:
    """Make the month's cost the imported invoice's, with its credits, taxes and commitments. Each cause of a
    difference becomes a line of its own, which belongs to no tenant; cost at list price and lines sum to the
    invoice, to the cent. 409 while anything is not accepted beyond the tolerance. 200 if the same true-up was
    recorded before."""
    made, new = await reconciliation.true_up(
        state,
        month_of(month),
        tolerance=Fraction(invoice.tolerance),
        invoice=None if invoice.invoice is None else Fraction(invoice.invoice),
        key=key,
    )
    if not new:
        response.status_code = 200
    return made
