"""Energy and emissions, and what they are computed from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.schemas.base import Answer, StrictBody
from gateway.schemas.finance import Complete, End, Hours, Start
from gateway.schemas.options import Option

_Source = Annotated[str, Option()]
_From = Annotated[str | None, Option(flag="--from")]
_SOURCE = Field(min_length=1, max_length=300, description="Who measured or states it, and how.")


class NewPower(StrictBody):
    gpu_type: Annotated[str, Option()] = Field(
        min_length=1, max_length=63, pattern=r"^[ -~]+$", description="GPU type, as engines are labelled."
    )
    watts: Annotated[str, Option()] = Field(
        max_length=20,
        description="Per GPU while it works, including its share of the host's; a decimal with at most three "
        "places.",
    )
    idle_watts: Annotated[str | None, Option()] = Field(
        None, max_length=20, description="Per GPU, idle or starting; left out: as `watts`."
    )
    source: _Source = _SOURCE
    valid_from: _From = Field(
        None,
        max_length=40,
        description="Start of a UTC day, ISO 8601. Default: always.",
        examples=["2026-11-01"],
    )


class NewGrid(StrictBody):
    region: Annotated[str, Option()] = Field(
        "", max_length=63, pattern=r"^[ -~]*$", description="Empty: regions without a grid of their own."
    )
    grams_per_kwh: Annotated[str, Option()] = Field(
        max_length=20, description="CO2e of the grid, in grams per kWh."
    )
    pue: Annotated[str, Option()] = Field(
        "1", max_length=20, description="Power usage effectiveness of the data centre, 1 or more."
    )
    source: _Source = _SOURCE
    valid_from: _From = Field(
        None,
        max_length=40,
        description="Start of a UTC day, ISO 8601. Default: always.",
        examples=["2026-11-01"],
    )


class EnergySums(Answer):
    gpu_hours: Hours
    kwh: str | None = Field(description="Power usage effectiveness included; null: no power is stated.")
    kg_co2e: str | None = Field(description="null: no power or no grid is stated.")


class EnergyRow(EnergySums):
    """With the dimensions that the report is grouped `by`."""

    tenant: str | None = None
    adapter: str | None = None
    gpu_type: str | None = None
    engine: str | None = None
    region: str | None = None
    day: str | None = None


class EnergyReport(Complete):
    """The rows, `retry_waste` and unused time sum exactly to `provisioned`."""

    start: Start
    to: End
    by: tuple[str, ...]
    rows: tuple[EnergyRow, ...]
    retry_waste: EnergySums
    headroom: EnergySums = Field(description="Spare capacity of engines at work.")
    startup: EnergySums
    idle: EnergySums
    provisioned: EnergySums
    missing_power: tuple[str, ...] = Field(description="GPU types.")
    missing_grid: tuple[str, ...] = Field(description="Regions.")


class PowerFigure(Answer):
    gpu_type: str
    watts: str
    idle_watts: str
    valid_from: str
    source: str
    recorded_at: str


class GridFigure(Answer):
    region: str | None = Field(description="null: regions without a grid of their own.")
    grams_per_kwh: str
    pue: str
    valid_from: str
    source: str
    recorded_at: str


class EnergyFigures(Answer):
    power: tuple[PowerFigure, ...]
    grid: tuple[GridFigure, ...]


class StatedPower(PowerFigure):
    changed: bool = Field(description="false: it was so before.")


class StatedGrid(GridFigure):
    changed: bool = Field(description="false: it was so before.")
