"""florin cost energy, power …"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import typer
from rich.text import Text

from gateway.commands.client import Json, UsageError
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, note_incomplete, say, show, table
from gateway.commands.session import Session, command
from gateway.costs.energy.schemas import (
    EnergyFigures,
    EnergyReport,
    EnergySums,
    NewGrid,
    NewPower,
    StatedGrid,
    StatedPower,
)
from gateway.units import short, shown

_power = typer.Typer(
    no_args_is_help=True, help="Stated power of GPU types and emissions of grids, for florin cost energy."
)
app = typer.Typer()
app.add_typer(_power, name="power")

_PATH = "/finance/v1/energy"


@command(app, "energy")
def energy(
    session: Session,
    *,
    by: Annotated[
        str, typer.Option(help="Any of tenant, adapter, gpu_type, engine, region, day.")
    ] = "tenant",
    month: Annotated[str | None, typer.Option(help="Month in UTC. Default: this month.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="Start, ISO 8601, inclusive.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="End, ISO 8601, exclusive.")] = None,
) -> None:
    """Report energy and CO2e, divided like GPU time, from the stated power.

    Example: florin cost energy --month 2026-07 --by tenant,gpu_type
    """
    if month and (start or end):
        raise UsageError("--month cannot be combined with --from or --to.")
    params = {"by": by, "month": month, "from": start, "to": end}
    session.result(session.api.get(_PATH, EnergyReport, params), _energy)


def _energy(body: EnergyReport) -> None:
    by = body.by
    width = max(len(by), 1)
    rows: list[list[str | Text]] = [[*(getattr(row, name) for name in by), *_sums(row)] for row in body.rows]
    rows.append([Text("")] * (width + 3))
    for name, sums in (
        ("retry waste", body.retry_waste), ("spare capacity while busy", body.headroom),
        ("start-up", body.startup), ("idle", body.idle), ("total", body.provisioned),
    ):  # fmt: skip  # two columns
        if Decimal(sums.gpu_hours) or sums is body.provisioned:
            rows.append([name, *[Text("")] * (width - 1), *_sums(sums)])
    columns = (*(name.replace("_", " ") for name in by), "GPU-hours", "kWh", "kg CO2e")
    show(table(columns, rows, right=columns[-3:]))
    for gpu_type in body.missing_power:
        note(f"No power of {clean(gpu_type)} is stated: florin cost power set --gpu-type {clean(gpu_type)} …")
    for region in body.missing_grid:
        where = f"region {clean(region)}" if region else "engines without a region"
        note(f"No grid of {where} is stated: florin cost power set-grid …")
    note_incomplete(body)


def _sums(row: EnergySums) -> list[str | Text]:
    return [shown(row.gpu_hours, 3), shown(row.kwh, 3), shown(row.kg_co2e, 3)]


@command(_power, "set")
@with_options(NewPower)
def set_(session: Session, *, changes: Json) -> None:
    """State what a GPU type draws. A later statement applies from its own day on.

    Example: florin cost power set --gpu-type H100 --watts 700 --idle-watts 120 --source "our meters, May"
    """
    session.result(session.api.put(f"{_PATH}/power", changes, StatedPower), _was_set)


def _was_set(body: StatedPower) -> None:
    say(
        f"{clean(body.gpu_type)} draws {short(body.watts)} W at work and "
        f"{short(body.idle_watts)} W idle, from {clean(body.valid_from)} on."
    )
    _unchanged(body)


@command(_power, "set-grid")
@with_options(NewGrid)
def set_grid(session: Session, *, changes: Json) -> None:
    """State the emissions of a region's grid, and the power usage effectiveness there.

    Example: florin cost power set-grid --region eu-1 --grams-per-kwh 56 --pue 1.2 --source "the operator"
    """
    session.result(session.api.put(f"{_PATH}/grid", changes, StatedGrid), _grid_was_set)


def _grid_was_set(body: StatedGrid) -> None:
    where = clean(body.region) if body.region else "Regions without their own grid"
    say(
        f"{where}: {short(body.grams_per_kwh)} g CO2e per kWh, PUE {short(body.pue)}, from "
        f"{clean(body.valid_from)} on."
    )
    _unchanged(body)


def _unchanged(body: StatedPower | StatedGrid) -> None:
    if not body.changed:
        note("Nothing changed: it was so before.")


@command(_power, "list")
def list_(session: Session) -> None:
    """List the stated power and grids, the latest first.

    Example: florin cost power list
    """
    session.result(session.api.get(f"{_PATH}/figures", EnergyFigures), _listed)


def _listed(body: EnergyFigures) -> None:
    if not body.power and not body.grid:
        note("Nothing is stated yet: florin cost power set --gpu-type … --watts … --source …")
    if body.power:
        rows = [(p.gpu_type, short(p.watts), short(p.idle_watts), p.valid_from, p.source) for p in body.power]
        columns = ("gpu type", "W at work", "W idle", "from", "source")
        show(table(columns, rows, right=columns[1:3]))
    if body.grid:
        rows = [
            (
                g.region or "all others",
                short(g.grams_per_kwh),
                short(g.pue),
                g.valid_from,
                g.source,
            )
            for g in body.grid
        ]
        columns = ("region", "g CO2e per kWh", "PUE", "from", "source")
        show(table(columns, rows, right=columns[1:3]))
