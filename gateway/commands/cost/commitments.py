"""florin cost commitments"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import typer

from gateway.commands.client import Json
from gateway.commands.output import busy, clean, note, note_incomplete, say, show, table
from gateway.commands.session import Session, command

app = typer.Typer()


@command(app, "commitments")
def commitments(
    session: Session,
    *,
    month: Annotated[
        str | None, typer.Option(help="Month in UTC, for example 2026-07. Default: this month so far.")
    ] = None,
) -> None:
    """Show how commitments were used: utilisation, coverage, list price against net cost, savings by spot.

    Net cost is the hourly rate of all committed hours, used or not, and the month's share of the upfront
    payment. Engines registered with --purchase reserved use commitments.

    Example: florin cost commitments --month 2026-10
    """
    with busy("Comparing with commitments"):
        body = session.api.get("/finance/v1/commitments/report", {"month": month})
    session.result(body, _people)


def _people(body: Json) -> None:
    note(f"{clean(body['from'])} to {clean(body['to'])}")
    currency = clean(body["currency"])
    if not body["rows"]:
        note("No commitments in this month: florin commitment add")
    else:
        rows = [
            (
                str(one["id"]), one["description"], f"{one['gpus']:,} x {one['gpu_type']}", one["region"],
                _hours(one["committed_gpu_hours"]), _hours(one["used_gpu_hours"]),
                _percent(one["utilisation"]), _money(one["net_cost"]), _money(one["unused_cost"]),
                _money(one["list_cost"]), _money(one["savings"]),
            )
            for one in body["rows"]
        ]  # fmt: skip  # as the columns
        columns = (
            "id", "commitment", "GPUs", "region", "GPU-hours", "used", "utilisation", f"net cost {currency}",
            "of it unused", "at list price", "savings",
        )  # fmt: skip  # one name a line says no more
        show(table(columns, rows, right=columns[4:]))
        totals = body["totals"]
        say(
            f"Commitments cost {_money(totals['net_cost'])} {currency}; "
            f"{_money(totals['unused_cost'])} of it paid for capacity that no engine used."
        )
    _coverage(body["gpu_types"])
    _spot(body["spot"], currency)
    note_incomplete(body)


def _coverage(gpu_types: list[Json]) -> None:
    if not gpu_types:
        return
    rows = [
        (
            one["gpu_type"], _hours(one["provisioned_gpu_hours"]), _hours(one["covered_gpu_hours"]),
            _percent(one["coverage"]), _hours(one["reserved_without_commitment_gpu_hours"]),
            _hours(one["spot_gpu_hours"]), _hours(one["on_demand_gpu_hours"]),
        )
        for one in gpu_types
    ]  # fmt: skip  # as the columns
    columns = (
        "gpu type", "GPU-hours provisioned", "covered", "coverage", "reserved, no commitment", "spot",
        "on demand",
    )  # fmt: skip  # one name a line says no more
    say("")
    show(table(columns, rows, right=columns[1:]))


def _spot(spot: list[Json], currency: str) -> None:
    if not spot:
        return
    rows = [
        (
            one["gpu_type"], one["region"], _hours(one["gpu_hours"]), _money(one["cost"]),
            _money(one["list_cost"]), _money(one["savings"]),
        )
        for one in spot
    ]  # fmt: skip  # as the columns
    columns = ("spot", "region", "GPU-hours", f"cost {currency}", "on demand", "savings")
    say("")
    show(table(columns, rows, right=columns[2:]))


def _hours(text: str) -> str:
    return f"{Decimal(text):,.3f}"


def _money(text: str | None) -> str | None:
    """To cents for people; --json is exact. None: a price is missing."""
    return None if text is None else f"{Decimal(text):,.2f}"


def _percent(share: str | None) -> str | None:
    return None if share is None else f"{Decimal(share) * 100:.1f}%"
