"""/admin/v1/prices and /admin/v1/exchange-rates. For the roles finance and operator."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from gateway.api.dependencies import Confirm, StaffKey, StateDep
from gateway.costs.prices import operations as prices
from gateway.costs.prices.exchange_rates import list_exchange_rates
from gateway.costs.prices.price_store import list_history, list_prices
from gateway.costs.prices.schemas import (
    AddedPrice,
    ExchangeRate,
    ListedPrice,
    NewExchangeRate,
    NewPrice,
    PriceCorrection,
)
from gateway.operations.authorization import actor_of
from gateway.schemas.base import Listed

router = APIRouter(prefix="/admin/v1", tags=["prices"])

Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="`id` of the price.")]


@router.post("/prices", status_code=201)
async def add(
    *, body: NewPrice, key: StaffKey, state: StateDep, response: Response, confirm: Confirm = False
) -> AddedPrice:
    """Add a price: 201, or 200 if the same price exists. Prices are never edited, but can be corrected.
    Role finance or operator."""
    price, new = await prices.add(state, body, actor=actor_of(key), confirmed=confirm)
    if not new:
        response.status_code = 200
    warnings = await prices.warnings(state, price, body.gpu_type)
    return AddedPrice.read(price.document() | {"warnings": warnings})


@router.post("/prices/{number}/correct", status_code=201)
async def correct(
    *, number: Number, body: PriceCorrection, key: StaffKey, state: StateDep, confirm: Confirm = False
) -> AddedPrice:
    """Correct a price: what is not given stays as it was. The earlier row is kept and no longer applies; an
    open-ended price before it resumes where the corrected one no longer applies. Open months change at once,
    closed months by corrections in the open month. Role finance or operator."""
    price = await prices.correct(state, number, body, actor=actor_of(key), confirmed=confirm)
    warnings = await prices.warnings(state, price, body.gpu_type)
    return AddedPrice.read(price.document() | {"warnings": warnings})


@router.get("/prices", response_model_exclude_unset=True)
async def show(
    _: StaffKey,
    state: StateDep,
    *,
    history: Annotated[
        bool, Query(description="Every price ever added, also those that were corrected or withdrawn.")
    ] = False,
) -> Listed[ListedPrice]:
    """List the prices in force, or every price ever added. Role finance or operator."""
    book = await asyncio.to_thread(list_history if history else list_prices, state.ledger)
    if not history:
        return Listed(data=tuple(ListedPrice.read(price.document()) for price in book))
    superseded = {price.supersedes: price.id for price in book}
    rows = (price.document() | {"superseded_by": superseded.get(price.id)} for price in book)
    return Listed(data=tuple(map(ListedPrice.read, rows)))


@router.post("/exchange-rates", status_code=201)
async def add_exchange_rate(
    *, body: NewExchangeRate, key: StaffKey, state: StateDep, response: Response, confirm: Confirm = False
) -> ExchangeRate:
    """Add an exchange rate: 201, or 200 if that day has the same rate. Role finance or operator."""
    rate, new = await prices.add_rate(state, body, actor=actor_of(key), confirmed=confirm)
    if not new:
        response.status_code = 200
    return ExchangeRate.read(rate.document())


@router.get("/exchange-rates")
async def show_exchange_rates(_: StaffKey, state: StateDep) -> Listed[ExchangeRate]:
    """List the exchange rates by pair and day; of several of a day, the last applies. Role finance or
    operator."""
    rates = await asyncio.to_thread(list_exchange_rates, state.ledger)
    return Listed(data=tuple(ExchangeRate.read(rate.document()) for rate in rates))
