"""Rate cards and invoices: what customers pay."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response

from gateway.api.dependencies import Confirm, FinanceKey, StaffKey, StateDep
from gateway.api.finance_requests import Tagged, Tenant, is_own_month, month_of, owner_of, tenants_of
from gateway.costs.periods import iso
from gateway.costs.selling import operations as rate_cards
from gateway.costs.selling.assignments import in_force_since
from gateway.costs.selling.card_store import assignments_of, list_cards
from gateway.costs.selling.invoices import list_invoices
from gateway.costs.selling.schemas import (
    Assignment,
    Invoice,
    NewAssignment,
    NewInvoice,
    NewRateCard,
    RateCard,
    RateCards,
)
from gateway.operations.authorization import actor_of
from gateway.schemas.base import Listed

router = APIRouter(route_class=Tagged)

_CARDS, _ASSIGNMENTS = "/rate-cards", "/rate-cards/assignments"


@router.post(_CARDS, status_code=201)
async def add(
    *, body: NewRateCard, key: StaffKey, state: StateDep, response: Response, confirm: Confirm = False
) -> RateCard:
    """Add a version of a rate card: 201, or 200 if the same exists. Versions are never edited; to replace
    other terms from the same month, give a `reason`. Closed months keep their prices. Role finance or
    operator."""
    card, new = await rate_cards.add(state, body, actor=actor_of(key), confirmed=confirm)
    if not new:
        response.status_code = 200
    return RateCard.read(card.document())


@router.get(_CARDS, response_model_exclude_unset=True)
async def show(
    key: FinanceKey,
    state: StateDep,
    tenant: Annotated[str | None, Query(description="Only cards that this tenant has had.")] = None,
) -> RateCards:
    """List every version of every rate card, and the assignments. A tenant's key sees the cards that were
    assigned to it since it was added."""
    cards = await asyncio.to_thread(list_cards, state.ledger)
    if (owner := owner_of(state, key)) is not None:
        cards = in_force_since(cards, owner.tenant, iso(owner.since)[:7])
    tenants = set(tenants_of(key, tenant))
    if len(tenants) > 1:  # not yours: as if there were none
        return RateCards(data=(), assignments=())
    whose = next(iter(tenants), None)
    assigned = assignments_of(cards, whose)
    names = {assignment.card for assignment in assigned}
    shown = [card for card in cards.cards if whose is None or card.name in names]
    return RateCards(
        data=tuple(RateCard.read(card.document()) for card in shown),
        assignments=tuple(Assignment.read(assignment.document()) for assignment in assigned),
        month=iso(state.clock.now())[:7],
    )


@router.post(_ASSIGNMENTS, status_code=201)
async def assign(body: NewAssignment, key: StaffKey, state: StateDep, response: Response) -> Assignment:
    """Assign a rate card to a tenant, or with `tenant` null to every tenant without an assignment of its own:
    201, or 200 if it is assigned already. With `card` null, the tenant pays the cost. Role finance or
    operator."""
    assignment, new = await rate_cards.assign(state, body, actor=actor_of(key))
    if not new:
        response.status_code = 200
    return Assignment.read(assignment.document())


@router.post("/invoices", status_code=201)
async def add_invoice(body: NewInvoice, key: StaffKey, state: StateDep, response: Response) -> Invoice:
    """Issue the statement of a closed month as an invoice, with its number, tax and due date: 201, or 200 if
    the same was issued. It is stored as it is, and does not change. To change something, issue a corrected
    invoice or a credit note: with `corrects`, a `reason` and a number of its own. Role finance or
    operator."""
    invoice, new = await rate_cards.add_invoice(state, body, actor=actor_of(key))
    if not new:
        response.status_code = 200
    return Invoice.read(invoice.document())


@router.get("/invoices")
async def show_invoices(
    key: FinanceKey,
    state: StateDep,
    month: Annotated[str | None, Query(description="`2026-11`")] = None,
    tenant: Tenant = None,
) -> Listed[Invoice]:
    """List invoices and credit notes in the order in which they were recorded; of several invoices for a
    month and tenant, the last counts. A tenant's key sees its own."""
    month_name = None if month is None else month_of(month)
    tenants = set(tenants_of(key, tenant))
    if len(tenants) > 1:
        return Listed(data=())
    whose = next(iter(tenants), None)
    invoices = await asyncio.to_thread(list_invoices, state.ledger, month_name, whose)
    own = {name for name in {i.month for i in invoices} if await is_own_month(state, key, name)}
    return Listed(data=tuple(Invoice.read(i.document()) for i in invoices if i.month in own))
