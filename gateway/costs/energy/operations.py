"""State the power of GPU types and the emissions of grids."""

from __future__ import annotations

from collections.abc import Callable

from gateway.costs.energy.energy_store import set_grid, set_power
from gateway.costs.energy.figures import Grid, Power
from gateway.costs.energy.schemas import NewGrid, NewPower
from gateway.costs.periods import instant_or_none
from gateway.operations.state import State
from gateway.operations.transaction import Json


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
    start = instant_or_none("valid_from", new.valid_from)
    figures = {**new.model_dump(), "valid_from": start}
    stored, changed = await state.ledger_process.run(store, **figures, now=state.clock.now(), actor=actor)
    return stored.document(), changed
