"""Commitments: GPUs that are paid for whether an engine is up or not."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import Tagged, month_of
from gateway.costs.commitments import operations as commitments
from gateway.costs.commitments.commitment_report import commitment_report
from gateway.costs.commitments.commitment_store import list_commitments
from gateway.costs.commitments.schemas import Commitment, CommitmentReport, NewCommitment
from gateway.costs.periods import iso
from gateway.costs.periods import month_of as whole_month
from gateway.costs.reconciliation.schemas.reconciliation import WithdrawnLine
from gateway.operations.ledger_refresh import completeness, refreshed
from gateway.schemas.base import Listed

router = APIRouter(prefix="/commitments", route_class=Tagged)


@router.post("", status_code=201)
async def add(body: NewCommitment, key: StaffKey, state: StateDep, response: Response) -> Commitment:
    """Add a commitment: 201, or 200 if the same one exists. Commitments are never edited; a wrong one is
    withdrawn."""
    commitment, new = await commitments.add(state, body, key)
    if not new:
        response.status_code = 200
    return Commitment.read(commitment)


@router.get("")
async def show(_: StaffKey, state: StateDep) -> Listed[Commitment]:
    """List every commitment, also withdrawn ones."""
    return Listed[Commitment].read({"data": await state.ledger_process.run(list_commitments)})


@router.get("/report", response_model_exclude_unset=True)
async def report(
    _: StaffKey,
    state: StateDep,
    month: Annotated[str | None, Query(description="`2026-11`. Default: this month so far.")] = None,
) -> CommitmentReport:
    """Coverage and utilization of commitments in a month, list price against net cost, what unused capacity
    cost, and savings by spot."""
    now = state.clock.now()
    month_name = month_of(month or iso(now)[:7])
    lacks = await refreshed(state, state.ledger_process, whole_month(month_name))
    report = await state.ledger_process.run(commitment_report, month_name, now=now)
    return CommitmentReport.read(report | completeness(state, lacks, report))


@router.post("/{number}/withdraw")
async def withdraw(
    number: Annotated[int, Path(ge=1, lt=2**31)], body: WithdrawnLine, key: StaffKey, state: StateDep
) -> Commitment:
    """Withdraw a commitment that was recorded by mistake: it no longer counts, in any month."""
    return Commitment.read(await commitments.withdraw(state, number, reason=body.reason, key=key))
