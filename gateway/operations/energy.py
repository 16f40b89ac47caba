"""State the power of GPU types and the emissions of grids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from gateway.costs.energy.energy_store import set_grid, set_power
from gateway.costs.energy.figures import EnergyError, Grid, Power
from gateway.costs.periods import PeriodError, instant
from gateway.errors import FlorinError
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.schemas.base import StrictBody

_Figure = Annotated[str, Field(max_length=20, description="A decimal with at most three places.")]
_Source = Annotated[str, Field(min_length=1, max_length=300, description="Who measured or states it.")]
_From = Annotated[
    str | None,
    Field(max_length=40, description="Start of a UTC day. Default: always.", examples=["2026-11-01"]),
]


class NewPower(StrictBody):
    gpu_type: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$", description="As engines are labelled.")
    ]
    watts: _Figure
    idle_watts: _Figure | None = None
    source: _Source
    valid_from: _From = None


class NewGrid(StrictBody):
    region: Annotated[
        str, Field(max_length=63, pattern=r"^[ -~]*$", description="Empty: regions without their own.")
    ] = ""
    grams_per_kwh: _Figure
    pue: _Figure = "1"
    source: _Source
    valid_from: _From = None


async def power(state: State, new: NewPower, *, actor: str) -> tuple[Json, bool]:
    """Returns the figure, and whether it is new. Raises FlorinError, LedgerUnavailableError."""
    return await _state(state, set_power, new, actor)


async def grid(state: State, new: NewGrid, *, actor: str) -> tuple[Json, bool]:
    """Returns the figure, and whether it is new. Raises FlorinError, LedgerUnavailableError."""
    return await _state(state, set_grid, new, actor)


async def _state(
    state: State, store: Callable[..., tuple[Power | Grid, bool]], new: NewPower | NewGrid, actor: str
) -> tuple[Json, bool]:
    """The fields of `new` have the names of the parameters of `store`."""
    try:
        start = None if new.valid_from is None else instant("valid_from", new.valid_from)
        figures = {**new.model_dump(), "valid_from": start}
        made, changed = await state.ledger_process.run(store, **figures, now=state.clock.now(), actor=actor)
    except (EnergyError, PeriodError) as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
    return made.document(), changed
