"""/admin/v1/prices: the price book, role operator. Analysts read it too."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from gateway.api.dependencies import Actor, FinanceKey, StateDep
from gateway.costs.periods import PeriodError, instant
from gateway.costs.prices.book import PriceConflictError, PriceError
from gateway.costs.prices.price_store import add_price, list_prices
from gateway.errors import FlorinError
from gateway.operations.inputs import NewPrice
from gateway.tenants.directory import Role

router = APIRouter(prefix="/admin/v1/prices", tags=["prices"])


@router.post("", status_code=201)
async def add(body: NewPrice, actor: Actor, state: StateDep, response: Response) -> dict[str, Any]:
    """Add a price: 201, or 200 when that very price stands already. Prices are never edited."""
    try:
        price, new = await asyncio.to_thread(
            add_price,
            state.ledger,
            gpu_type=body.gpu_type,
            rate=body.rate_per_gpu_hour,
            currency=body.currency,
            purchase=body.purchase,
            region=body.region,
            valid_from=None if body.valid_from is None else instant("valid_from", body.valid_from),
            valid_to=None if body.valid_to is None else instant("valid_to", body.valid_to),
            now=state.clock.now(),
            speedup=body.speedup,
            speedup_reference=body.speedup_reference,
            speedup_source=body.speedup_source,
            actor=actor,
        )
    except (PriceError, PeriodError) as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
    except PriceConflictError as error:
        raise FlorinError("conflict", str(error)) from error
    if not new:
        response.status_code = 200
    return price.document()


@router.get("")
async def show(key: FinanceKey, state: StateDep) -> dict[str, Any]:
    """The price book: every price that was ever added."""
    if key.role is Role.TENANT:
        raise FlorinError("insufficient_role", "The price book is for operators and analysts.")
    return {"data": [price.document() for price in await asyncio.to_thread(list_prices, state.ledger)]}
