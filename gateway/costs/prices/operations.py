"""Add and correct prices, and add exchange rates. Nothing is edited: a correction is a row of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from adapters.model import Engine
from gateway.costs.periods import PeriodError, instant, instant_or_none, iso
from gateway.costs.prices.corrections import Change, NoPriceError, correct_price
from gateway.costs.prices.exchange_rates import (
    ExchangeRate,
    ExchangeRateConflictError,
    ExchangeRateError,
    add_exchange_rate,
)
from gateway.costs.prices.jumps import UnconfirmedJumpError
from gateway.costs.prices.price import Price, PriceConflictError, PriceError
from gateway.costs.prices.price_store import add_price, price_gaps
from gateway.costs.prices.schemas import NewExchangeRate, NewPrice, PriceCorrection
from gateway.errors import FlorinError
from gateway.operations.state import State

_SHOWN = 3
"""Most times without a price that are listed."""


async def add(state: State, new: NewPrice, *, actor: str, confirmed: bool = True) -> tuple[Price, bool]:
    """Return the price, and False if the same price existed already. `confirmed`: False refuses what may be a
    slip. Raises FlorinError, LedgerUnavailableError."""
    with _refusals():
        return await asyncio.to_thread(
            add_price,
            state.ledger,
            gpu_type=new.gpu_type,
            rate=new.rate_per_gpu_hour,
            currency=new.currency,
            purchase=new.purchase,
            region=new.region,
            valid_from=instant_or_none("valid_from", new.valid_from),
            valid_to=instant_or_none("valid_to", new.valid_to),
            now=state.clock.now(),
            speedup=new.speedup,
            speedup_reference=new.speedup_reference,
            speedup_source=new.speedup_source,
            actor=actor,
            confirmed=confirmed,
        )


async def correct(state: State, number: int, body: PriceCorrection, *, actor: str, confirmed: bool) -> Price:
    """Supersede the price `number`. `confirmed`: as above. Raises FlorinError, LedgerUnavailableError."""
    with _refusals():
        change = Change(
            reason=body.reason,
            gpu_type=body.gpu_type,
            rate=body.rate_per_gpu_hour,
            region=body.region,
            purchase=body.purchase,
            valid_from=instant_or_none("valid_from", body.valid_from),
            valid_to=instant_or_none("valid_to", body.valid_to),
            open_ended=body.open_ended,
            speedup=body.speedup,
            speedup_reference=body.speedup_reference,
            speedup_source=body.speedup_source,
            withdraw=body.withdraw,
        )
        return await asyncio.to_thread(
            correct_price,
            state.ledger,
            number,
            change,
            now=state.clock.now(),
            actor=actor,
            confirmed=confirmed,
        )


async def add_rate(
    state: State, new: NewExchangeRate, *, actor: str, confirmed: bool
) -> tuple[ExchangeRate, bool]:
    """Return the exchange rate, and False if the same one existed already. `confirmed`: as above. Raises
    FlorinError, LedgerUnavailableError."""
    with _refusals():
        return await asyncio.to_thread(
            add_exchange_rate,
            state.ledger,
            currency=new.currency,
            target=new.target,
            rate=new.rate,
            valid_from=instant("valid_from", new.valid_from),
            source=new.source,
            reason=new.reason,
            now=state.clock.now(),
            actor=actor,
            confirmed=confirmed,
        )


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise the errors of the price book as FlorinError."""
    try:
        yield
    except (PriceError, ExchangeRateError, PeriodError) as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
    except (PriceConflictError, ExchangeRateConflictError) as error:
        raise FlorinError("conflict", str(error)) from error
    except UnconfirmedJumpError as error:
        raise FlorinError("confirmation_required", str(error)) from error
    except NoPriceError as error:
        raise FlorinError("not_found", str(error)) from error


async def warnings(state: State, price: Price, spelling: str | None) -> list[str]:
    """What may be a slip, and the times that have no price. `spelling`: the GPU type as it was given. Raises
    LedgerUnavailableError."""
    gaps = await asyncio.to_thread(price_gaps, state.ledger, price, state.clock.now())
    return [*_slips(price, spelling, state.catalog.engines.values()), *_unpriced(price, gaps)]


def _unpriced(price: Price, gaps: Sequence[tuple[int, int | None]]) -> Iterator[str]:
    for start, end in gaps[:_SHOWN]:
        until = "on" if end is None else f"to {iso(end)}"
        yield f"No price applies to {price.named} from {iso(start)} {until}."
    if len(gaps) > _SHOWN:
        yield f"{len(gaps) - _SHOWN:,} later times have no price either."


def _slips(price: Price, spelling: str | None, engines: Iterable[Engine]) -> list[str]:
    slips = []
    if spelling is not None and spelling != price.gpu_type:
        slips.append(f"{spelling} is spelled {price.gpu_type}, as in the price book.")
    types = {engine.gpu_type for engine in engines}
    if types and price.gpu_type.lower() not in {name.lower() for name in types}:
        slips.append(
            f"No registered engine has GPU type {price.gpu_type}; there are {', '.join(sorted(types))}."
        )
    return slips
