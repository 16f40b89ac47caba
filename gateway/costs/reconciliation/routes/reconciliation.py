"""Reconciles records with the engines' counters, and GPU-hours with the bill; accepts differences."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Annotated

from fastapi import APIRouter, Path, Query

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import Tagged, month_of
from gateway.costs.periods import iso
from gateway.costs.periods import month_of as whole_month
from gateway.costs.reconciliation.acceptances import list_acceptances
from gateway.costs.reconciliation.operations import reconciliation as operations
from gateway.costs.reconciliation.reconcile import TOLERANCE, reconcile
from gateway.costs.reconciliation.schemas.reconciliation import (
    AcceptanceEntry,
    AcceptedLines,
    AcceptedNow,
    Reconciliation,
    WithdrawnAcceptance,
    WithdrawnLine,
)
from gateway.operations.ledger_refresh import completeness, refreshed
from gateway.schemas.base import Listed

router = APIRouter(route_class=Tagged)

Tolerance = Annotated[
    Decimal,
    Query(  # few decimal places, because the fraction of 1e-999999 would take hours
        ge=0, le=100, decimal_places=9, description="Percentage that need not be accepted."
    ),
]
DEFAULT_TOLERANCE = Decimal(TOLERANCE.numerator) / TOLERANCE.denominator


@router.get("/reconciliation", response_model_exclude_unset=True)
async def reconciliation(
    *,
    _: StaffKey,
    state: StateDep,
    month: Annotated[str | None, Query(description="`2026-11`. Default: this month so far.")] = None,
    tolerance: Tolerance = DEFAULT_TOLERANCE,
) -> Reconciliation:
    """Compare usage with engine counters and bills. Each difference is a line with its cause and a verdict.
    Role finance or operator. Reads the month's records."""
    now = state.clock.now()
    name = month_of(month or iso(now)[:7])
    lacks = await refreshed(state, state.ledger_process, whole_month(name))
    report = await state.ledger_process.aside().run(reconcile, name, tolerance=Fraction(tolerance), now=now)
    return Reconciliation.read(report | completeness(state, lacks, report))


@router.get("/reconciliation/acceptances", response_model_exclude_unset=True)
async def acceptances(
    _: StaffKey, state: StateDep, month: Annotated[str, Query(description="`2026-11`")]
) -> Listed[AcceptanceEntry]:
    """Who accepted which differences of a month, when and why, and what was withdrawn; newest first."""
    entries = await state.ledger_process.run(list_acceptances, month_of(month))
    return Listed[AcceptanceEntry].read({"data": entries})


@router.post("/reconciliation/acceptances", response_model_exclude_unset=True)
async def accept(body: AcceptedLines, key: StaffKey, state: StateDep) -> AcceptedNow:
    """Accept differences with their present amounts. If an amount changes later, its acceptance no longer
    holds. Accepting a line again changes nothing."""
    return AcceptedNow.read(await operations.accept_lines(state, body, key=key))


@router.post("/reconciliation/acceptances/{line}/withdraw", response_model_exclude_unset=True)
async def withdraw_acceptance(
    line: Annotated[str, Path(max_length=32)], body: WithdrawnLine, key: StaffKey, state: StateDep
) -> WithdrawnAcceptance:
    """Withdraw the acceptance of a line."""
    withdrawn = await operations.withdraw_acceptance(state, line, reason=body.reason, key=key)
    return WithdrawnAcceptance.read(withdrawn)
