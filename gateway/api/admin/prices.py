"""/admin/v1/prices: the price book. Operators add prices; analysts may read it."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from gateway.api.dependencies import Actor, StaffKey, StateDep
from gateway.costs.prices.price_store import list_prices
from gateway.operations import prices
from gateway.operations.inputs import NewPrice

router = APIRouter(prefix="/admin/v1/prices", tags=["prices"])


@router.post("", status_code=201)
async def add(body: NewPrice, actor: Actor, state: StateDep, response: Response) -> dict[str, Any]:
    """Add a price: 201, or 200 if the same price exists. Prices are never edited."""
    price, new = await prices.add(state, body, actor=actor)
    if not new:
        response.status_code = 200
    return price.document()


@router.get("")
async def show(_: StaffKey, state: StateDep) -> dict[str, Any]:
    """List every price ever added."""
    return {"data": [price.document() for price in await asyncio.to_thread(list_prices, state.ledger)]}
