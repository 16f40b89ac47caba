"""Reconciles records with the engines' counters, and GPU-hours with the bill; accepts differences."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance.common import Tagged, month_of
from gateway.costs.periods import iso
from gateway.costs.reconciliation.acceptances import list_acceptances
from gateway.costs.reconciliation.reconcile import TOLERANCE, reconcile
from gateway.operations import reconciliation as operations
from gateway.operations.ledger_refresh import completeness, refresh
from gateway.schemas.base import StrictBody

router = APIRouter(route_class=Tagged)

Tolerance = Annotated[
    Decimal,
    Query(  # few decimal places, because the fraction of 1e-999999 would take hours
        ge=0, le=100, decimal_places=9, description="Percentage that need not be accepted."
    ),
]
DEFAULT_TOLERANCE = Decimal(TOLERANCE.numerator) / TOLERANCE.denominator
Reason = Annotated[str, Field(min_length=3, max_length=500, description="Why; kept in the audit log.")]


class AcceptedLines(StrictBody):
    """What is accepted, and why."""

    lines: Annotated[
        list[Annotated[str, Field(max_length=32)]],
        Field(max_length=1000, description="As reconciled.", examples=[["2026-10-8f3b2c91"]]),
    ] = []  # noqa: RUF012  # pydantic copies it
    month: Annotated[str | None, Field(max_length=7, description="`2026-10`; needed with `kind` alone.")] = (
        None
    )
    kind: Annotated[
        str | None,
        Field(max_length=32, description="All lines of this kind, besides `lines`.", examples=["rounding"]),
    ] = None
    reason: Reason


class WithdrawnLine(StrictBody):
    """Why an acceptance is withdrawn."""

    reason: Reason


@router.get("/reconciliation")
async def reconciliation(
    *,
    _: StaffKey,
    state: StateDep,
    month: Annotated[str | None, Query(description="`2026-11`. Default: this month so far.")] = None,
    tolerance: Tolerance = DEFAULT_TOLERANCE,
) -> dict[str, Any]:
    """Compare usage with engine counters and bills. Each difference is a line with its cause and a verdict:
    `matched`, `identified`, `unidentified` or `accepted`. `unexplained` has a sentence for what is not
    accepted beyond the tolerance, and one if no bill was imported; `ok` is true if there is none. Role
    finance or operator. Reads the month's records."""
    now = state.clock.now()
    of = month_of(month or iso(now)[:7])
    complete = await refresh(state, state.ledger_process)
    found = await state.ledger_process.aside().run(reconcile, of, tolerance=Fraction(tolerance), now=now)
    return {**found, **completeness(state, complete=complete)}


@router.get("/reconciliation/acceptances")
async def acceptances(
    _: StaffKey, state: StateDep, month: Annotated[str, Query(description="`2026-11`")]
) -> dict[str, Any]:
    """Who accepted which differences of a month, when and why, and what was withdrawn; newest first."""
    return {"data": await state.ledger_process.run(list_acceptances, month_of(month))}


@router.post("/reconciliation/acceptances")
async def accept(asked: AcceptedLines, key: StaffKey, state: StateDep) -> dict[str, Any]:
    """Accept differences with their present amounts. If an amount changes later, its acceptance no longer
    holds. Accepting a line again changes nothing."""
    return await operations.accept_lines(
        state, asked.lines, month=asked.month, kind=asked.kind, reason=asked.reason, key=key
    )


@router.post("/reconciliation/acceptances/{line}/withdraw")
async def unaccept(
    line: Annotated[str, Path(max_length=32)], asked: WithdrawnLine, key: StaffKey, state: StateDep
) -> dict[str, Any]:
    """Withdraw the acceptance of a line."""
    return await operations.unaccept_line(state, line, reason=asked.reason, key=key)
