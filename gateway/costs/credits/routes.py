"""Prepaid credits."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from gateway.api.dependencies import FinanceKey, StaffKey, StateDep
from gateway.api.finance_requests import Tagged, require_own_month
from gateway.costs.credits import operations as prepaid
from gateway.costs.credits.schemas import Balance, EndedGrant, Grant, NewGrant
from gateway.costs.credits.store import list_grants
from gateway.costs.periods import iso
from gateway.errors import FlorinError
from gateway.operations.authorization import actor_of
from gateway.schemas.base import Listed

router = APIRouter(prefix="/credits", route_class=Tagged)


@router.post("", status_code=201)
async def grant(body: NewGrant, key: StaffKey, state: StateDep, response: Response) -> Grant:
    """Grant prepaid credits to a tenant: 201, or 200 if the reference was granted already, on the same terms.
    Role finance or operator."""
    grant, new = await prepaid.grant(state, body, actor=actor_of(key))
    if not new:
        response.status_code = 200
    return Grant.read(grant.document())


@router.get("")
async def show(
    _: StaffKey,
    state: StateDep,
    tenant: Annotated[str | None, Query(description="Only this tenant's.")] = None,
) -> Listed[Grant]:
    """List every grant, the oldest first, also used and expired ones."""
    grants = await asyncio.to_thread(list_grants, state.ledger, tenant)
    return Listed(data=tuple(Grant.read(grant.document()) for grant in grants))


@router.get("/balance/{tenant}")
async def balance(tenant: str, key: FinanceKey, state: StateDep) -> Balance:
    """A tenant's credits in the present month, as its statement would show them now. A tenant's key gets only
    its own."""
    if key.own_tenant not in (None, tenant):
        raise FlorinError("not_found", f"No credits of {tenant[:70]!r}.")
    await require_own_month(state, key, iso(state.clock.now())[:7])
    return await prepaid.balance(state, tenant)


@router.post("/{number}/end")
async def end(
    number: Annotated[int, Path(ge=1, lt=2**31)], body: EndedGrant, key: StaffKey, state: StateDep
) -> Grant:
    """Set the last month of a grant: what is left of it expires then. Closed months keep what they drew."""
    grant = await prepaid.end(state, number, body, actor=actor_of(key))
    return Grant.read(grant.document())
