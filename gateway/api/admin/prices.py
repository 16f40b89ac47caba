"""/admin/v1/prices: the price book, role operator. Analysts read it too."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from gateway.api.dependencies import Actor, FinanceKey, StateDep
from gateway.costs.prices.price_store import list_prices
from gateway.errors import FlorinError
from gateway.operations import prices
from gateway.operations.inputs import NewPrice
from gateway.tenants.directory import Role

router = APIRouter(prefix="/admin/v1/prices", tags=["prices"])


@router.post("", status_code=201)
async def add(body: NewPrice, actor: Actor, state: StateDep, response: Response) -> dict[str, Any]:
    """Add a price: 201, or 200 when that very price stands already. Prices are never edited."""
    price, new = await prices.add(state, body, actor=actor)
    if not new:
        response.status_code = 200
    return price.document()


@router.get("")
async def show(key: FinanceKey, state: StateDep) -> dict[str, Any]:
    """The price book: every price that was ever added."""
    if key.role is Role.TENANT:
        raise FlorinError("insufficient_role", "The price book is for operators and analysts.")
    return {"data": [price.document() for price in await asyncio.to_thread(list_prices, state.ledger)]}
