"""Prepaid credits."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from gateway.api.dependencies import FinanceKey, StaffKey, StateDep
from gateway.api.finance_requests import Tagged, require_own_month
from gateway.costs.credits import operations as prepaid
from gateway.costs.credits.schemas import Balance, EndedGrant, Grant, NewGrant, TopUp
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


_EVENT = {"content": {"application/json": {"schema": {"type": "object"}}}, "required": True}


@router.post("/top-ups", openapi_extra={"requestBody": _EVENT})
async def top_up(request: Request, state: StateDep) -> TopUp:
    """For a payment provider's webhook: grants a tenant what it has paid. Needs no key, but a signature:
    `FLORIN_TOP_UP_SECRET`. The same event grants once. A payment that cannot be granted gets an error, so
    that the provider tries again, and raises an alert."""
    grant = await prepaid.top_up(state, request.headers, await request.body())
    return TopUp(grant=None if grant is None else grant.id)


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
