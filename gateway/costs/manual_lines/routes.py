"""Manual lines of statements: fees, charges, credits and refunds."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import Tagged
from gateway.costs.manual_lines import operations as manual_lines
from gateway.costs.manual_lines.schemas import EndedFee, ManualLine, NewManualLine
from gateway.costs.manual_lines.store import list_manual_lines
from gateway.operations.authorization import actor_of
from gateway.schemas.base import Listed

router = APIRouter(prefix="/manual-lines", route_class=Tagged)

Number = Annotated[int, Path(ge=1, lt=2**31)]


@router.post("", status_code=201)
async def add(body: NewManualLine, key: StaffKey, state: StateDep, response: Response) -> ManualLine:
    """Add a fee, or a charge, a credit or a refund on the next statement: 201, or 200 if the same is there.
    With FLORIN_TWO_PERSON_APPROVAL it is pending until another person approves it. Role finance or
    operator."""
    line, new = await manual_lines.add(state, body, actor=actor_of(key))
    if not new:
        response.status_code = 200
    return ManualLine.read(line.document())


@router.get("")
async def show(
    _: StaffKey,
    state: StateDep,
    tenant: Annotated[str | None, Query(description="Only this tenant's.")] = None,
) -> Listed[ManualLine]:
    """List every manual line in the order in which they were requested, also withdrawn ones."""
    lines = await asyncio.to_thread(list_manual_lines, state.ledger, tenant)
    return Listed(data=tuple(ManualLine.read(line.document()) for line in lines))


@router.post("/{number}/approve")
async def approve(number: Number, key: StaffKey, state: StateDep) -> ManualLine:
    """Approve a pending line: from now on it counts. 403 `second_person_required` for who requested it."""
    line = await manual_lines.approve(state, number, actor=actor_of(key))
    return ManualLine.read(line.document())


@router.post("/{number}/withdraw")
async def withdraw(number: Number, key: StaffKey, state: StateDep) -> ManualLine:
    """Withdraw a pending line. An approved one stays: end the fee, or add the opposite."""
    line = await manual_lines.withdraw(state, number, actor=actor_of(key))
    return ManualLine.read(line.document())


@router.post("/{number}/end", status_code=201)
async def end(
    number: Number, body: EndedFee, key: StaffKey, state: StateDep, response: Response
) -> ManualLine:
    """End a fee: a line of its own, which is approved like any other."""
    line, new = await manual_lines.end(state, number, body, actor=actor_of(key))
    if not new:
        response.status_code = 200
    return ManualLine.read(line.document())
