"""florin cost compare"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated

import typer
from rich.text import Text

from gateway.commands.output import clean, note, note_incomplete, show, table
from gateway.commands.session import Session, command
from gateway.costs.reports.schemas.comparison import ActualUse, Comparison, Offer
from gateway.units import percent, shown

app = typer.Typer()


@command(app, "compare")
def compare(
    session: Session,
    *,
    month: Annotated[
        str | None, typer.Option(help="Month in UTC, for example 2026-07. Default: the last full month.")
    ] = None,
    gpu_type: Annotated[
        list[str] | None,
        typer.Option(help="GPU type to compare; repeatable. Default: all in the price book."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="GPU type to measure by. Default: the one with the most hours.")
    ] = None,
) -> None:
    """Price a month's traffic on other GPU types and purchase models, cheapest first.

    Example: florin cost compare --month 2026-07 --gpu-type H100 --gpu-type L40
    """
    params = {"month": month, "gpu_type": gpu_type or None, "reference": reference}
    session.result(session.api.get("/finance/v1/compare", Comparison, params), _people)


def _people(body: Comparison) -> None:
    actual, work = body.actual, body.work
    reference, currency = clean(body.reference), clean(body.currency)
    note(
        f"{clean(body.month)}: the work takes {shown(work.busy_reference_hours)} GPU-hours of an "
        f"{reference}, and {shown(work.provisioned_reference_hours)} were provisioned "
        f"({reference}-equivalents, {percent(work.utilization)} used). {_cost(actual, currency)}"
    )
    columns = (
        "GPU", "per hour", "speed", "", f"per {reference}-hour", "busy hours", "if busy", "hours", "pro rata",
        "GPUs", f"always on {currency}", "",
    )  # fmt: skip  # one name a line says no more
    rows = [
        [
            _gpu(row), _money(row.rate_per_gpu_hour), shown(row.speedup, 3), row.speedup_is,
            shown(row.effective_rate, 4), shown(row.busy_gpu_hours, 2), shown(row.busy_cost, 2),
            shown(row.loaded_gpu_hours, 2), shown(row.loaded_cost, 2),
            "-" if row.gpus is None else f"{row.gpus:,}", shown(row.gpus_cost, 2),
            Text("cheapest", "bold") if row.cheapest else Text(""),
        ]
        for row in body.rows
    ]  # fmt: skip  # as the columns
    show(table(columns, rows, right=(*columns[1:3], *columns[4:11])))
    note(
        f"The same work without unused time (if busy); at {percent(work.utilization)} utilization, as in "
        f"{clean(body.month)} (hours, pro rata); and on whole GPUs that are on for all "
        f"{shown(body.hours)} hours, which decide what is cheapest."
    )
    for source, names in _sources(body.rows).items():
        note(f"Stated speed of {', '.join(names)}: {clean(source)}.")
    for name in actual.left_out:
        note(f"Usage on {clean(name)} is left out: {_advice(name, reference)}")
    for name in dict.fromkeys(row.gpu_type for row in body.rows if row.speedup is None):
        note(f"The speed of {clean(name)} is unknown: {_advice(name, reference)}")
    note_incomplete(body)


def _cost(actual: ActualUse, currency: str) -> str:
    if actual.cost is not None:
        return f"They cost {_money(actual.cost)} {currency}."
    missing = ", ".join(map(clean, actual.missing_prices))
    return f"They cost {_money(actual.priced_cost or '0')} {currency} without {missing}, which has no price."


def _advice(gpu_type: str, reference: str) -> str:
    return (
        f"calibrate {clean(gpu_type)} and {reference} (florin calibrate), or state its speed with its price "
        f"(florin price add --gpu-type {clean(gpu_type)} --speedup … --reference {reference})."
    )


def _gpu(row: Offer) -> str:
    """The offer, like `H100 spot in eu-west, -64.0 %`."""
    where = f" in {row.region}" if row.region else ""
    discount = "" if row.discount is None else f", -{percent(row.discount)}"
    return f"{row.gpu_type} {row.purchase.replace('_', ' ')}{where}{discount}"


def _sources(rows: Sequence[Offer]) -> dict[str, list[str]]:
    """Source of a stated speed → the GPU types it covers."""
    gpu_types: dict[str, list[str]] = {}
    for row in rows:
        names = gpu_types.setdefault(row.speedup_source, []) if row.speedup_source else []
        if row.gpu_type not in names:
            names.append(clean(row.gpu_type))
    return gpu_types


def _money(text: str) -> str:
    return shown(text) if Decimal(text) == round(Decimal(text), 2) else f"{Decimal(text):,f}"
