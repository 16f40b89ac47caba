"""Add prices to the price book. Prices are never edited."""

from __future__ import annotations

import asyncio

from gateway.costs.periods import PeriodError, instant
from gateway.costs.prices.book import Price, PriceConflictError, PriceError
from gateway.costs.prices.price_store import add_price
from gateway.errors import FlorinError
from gateway.operations.inputs import NewPrice
from gateway.operations.state import State


async def add(state: State, new: NewPrice, *, actor: str) -> tuple[Price, bool]:
    """Return the price, and False if the same price existed already. Raises FlorinError,
    LedgerUnavailableError."""
    try:
        return await asyncio.to_thread(
            add_price,
            state.ledger,
            gpu_type=new.gpu_type,
            rate=new.rate_per_gpu_hour,
            currency=new.currency,
            purchase=new.purchase,
            region=new.region,
            valid_from=None if new.valid_from is None else instant("valid_from", new.valid_from),
            valid_to=None if new.valid_to is None else instant("valid_to", new.valid_to),
            now=state.clock.now(),
            speedup=new.speedup,
            speedup_reference=new.speedup_reference,
            speedup_source=new.speedup_source,
            actor=actor,
        )
    except (PriceError, PeriodError) as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
    except PriceConflictError as error:
        raise FlorinError("conflict", str(error)) from error
