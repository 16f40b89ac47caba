"""Energy and emissions, from stated power."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import From, Month, Tagged, To, dimensions_of, period_of
from gateway.costs.energy import operations
from gateway.costs.energy.energy_store import DIMENSIONS, energy_report, stated
from gateway.costs.energy.schemas import (
    EnergyFigures,
    EnergyReport,
    NewGrid,
    NewPower,
    StatedGrid,
    StatedPower,
)
from gateway.operations.authorization import actor_of
from gateway.operations.ledger_refresh import completeness, refreshed

router = APIRouter(prefix="/energy", route_class=Tagged)


@router.get("", response_model_exclude_unset=True)
async def energy(
    *,
    _: StaffKey,
    state: StateDep,
    by: Annotated[str, Query(description=f"Comma-separated list of {', '.join(DIMENSIONS)}.")] = "tenant",
    start: From = None,
    to: To = None,
    month: Month = None,
) -> EnergyReport:
    """Energy (kWh, power usage effectiveness included) and emissions (kg of CO2e) of a period, by default of
    this month. Divided like GPU time: the rows, `retry_waste` and unused time sum exactly to `whole`. Figures
    are null where no power or no grid is stated (`missing_power`, `missing_grid`)."""
    within = period_of(start, to, month, state.clock.now())
    lacks = await refreshed(state, state.ledger_process, within)
    report = await state.ledger_process.run(energy_report, within, dimensions_of(by, DIMENSIONS))
    return EnergyReport.read(report | completeness(state, lacks, report))


@router.get("/figures")
async def figures(_: StaffKey, state: StateDep) -> EnergyFigures:
    """Every stated power and grid, the latest first. Of those with the same start, the latest applies."""
    return EnergyFigures.read(await state.ledger_process.run(stated))


@router.put("/power")
async def power(new: NewPower, key: StaffKey, state: StateDep) -> StatedPower:
    """State what a GPU type draws from a UTC day on. `idle_watts` (default: `watts`) applies to idle time and
    start-up. Stating the same again changes nothing (`changed` is false)."""
    figure, changed = await operations.power(state, new, actor=actor_of(key))
    return StatedPower.read(figure | {"changed": changed})


@router.put("/grid")
async def grid(new: NewGrid, key: StaffKey, state: StateDep) -> StatedGrid:
    """State the emissions and the power usage effectiveness of a region from a UTC day on. Stating the same
    again changes nothing (`changed` is false)."""
    figure, changed = await operations.grid(state, new, actor=actor_of(key))
    return StatedGrid.read(figure | {"changed": changed})
