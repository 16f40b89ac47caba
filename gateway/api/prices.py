"""/admin/v1/prices: the price book, role operator. Analysts read it too."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.deps import Actor, FinanceKey, StateDep
from gateway.costs.periods import PeriodError, instant
from gateway.costs.prices import PriceConflictError, PriceError, add_price, list_prices
from gateway.errors import FlorinError
from gateway.tenants.directory import Role

router = APIRouter(prefix="/admin/v1/prices", tags=["prices"])


class NewPrice(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu_type: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$", description="As engines are labelled.")
    ]
    rate_per_gpu_hour: Annotated[
        str, Field(max_length=40, description="A decimal of at most six places.", examples=["2.50"])
    ]
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    purchase: Literal["on_demand", "spot", "reserved"] = "on_demand"
    region: Annotated[str, Field(max_length=63, pattern=r"^[ -~]*$")] = ""
    valid_from: Annotated[
        str | None,
        Field(
            description="ISO 8601, UTC. Left out: the first price of its series holds from the beginning of "
            "what is not closed, a later one from now on."
        ),
    ] = None
    valid_to: Annotated[
        str | None, Field(description="Not included. Left out: until the next price of its series.")
    ] = None
    speedup: Annotated[
        str | None,
        Field(
            max_length=40,
            description="How many times as fast as the reference GPU; a decimal of at most three places.",
            examples=["2.5"],
        ),
    ] = None
    speedup_reference: Annotated[
        str | None, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$", description="A GPU type.")
    ] = None
    speedup_source: Annotated[
        str | None, Field(min_length=1, max_length=300, description="Who measured it, and how.")
    ] = None


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
    if key.role is Role.TENANT:
        raise FlorinError("insufficient_role", "The price book is for operators and analysts.")
    return {"data": [price.document() for price in await asyncio.to_thread(list_prices, state.ledger)]}
