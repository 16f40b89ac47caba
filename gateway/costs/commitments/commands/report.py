"""florin commitment report"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from gateway.commands.output import busy, clean, note, note_incomplete, say, show, table
from gateway.commands.session import Session, command
from gateway.costs.commitments.schemas import CommitmentReport, Coverage, SpotSavings
from gateway.units import percent, shown, shown_money

app = typer.Typer()


@command(app, "report")
def report(
    session: Session,
    *,
    month: Annotated[
        str | None, typer.Option(help="Month in UTC, for example 2026-07. Default: this month so far.")
    ] = None,
) -> None:
    """Show how commitments were used: utilization, coverage, list price against net cost, savings by spot.

    Net cost is the hourly rate of all committed hours, used or not, and the month's share of the upfront
    payment. Engines registered with --purchase reserved use commitments.

    Example: florin commitment report --month 2026-10
    """
    with busy("Comparing with commitments"):
        usage = session.api.get("/finance/v1/commitments/report", CommitmentReport, {"month": month})
    session.result(usage, _people)


def _people(body: CommitmentReport) -> None:
    note(f"{clean(body.start)} to {clean(body.to)}")
    currency = clean(body.currency)
    money = partial(shown_money, currency=currency)
    if not body.rows:
        note("No commitments in this month: florin commitment add")
    else:
        rows = [
            (
                str(row.id), row.description, f"{row.gpus:,} x {row.gpu_type}", row.region,
                shown(row.committed_gpu_hours, 3), shown(row.used_gpu_hours, 3),
                percent(row.utilization), money(row.net_cost), money(row.unused_cost),
                money(row.list_cost), money(row.savings),
            )
            for row in body.rows
        ]  # fmt: skip  # as the columns
        columns = (
            "id", "commitment", "GPUs", "region", "GPU-hours", "used", "utilization", f"net cost {currency}",
            "of it unused", "at list price", "savings",
        )  # fmt: skip  # one name a line says no more
        show(table(columns, rows, right=columns[4:]))
        totals = body.totals
        say(
            f"Commitments cost {money(totals.net_cost)} {currency}; "
            f"{money(totals.unused_cost)} of it paid for capacity that no engine used."
        )
    _coverage(body.gpu_types)
    _spot(body.spot, currency)
    note_incomplete(body)


def _coverage(gpu_types: Sequence[Coverage]) -> None:
    if not gpu_types:
        return
    rows = [
        (
            row.gpu_type, shown(row.provisioned_gpu_hours, 3), shown(row.covered_gpu_hours, 3),
            percent(row.coverage), shown(row.reserved_without_commitment_gpu_hours, 3),
            shown(row.spot_gpu_hours, 3), shown(row.on_demand_gpu_hours, 3),
        )
        for row in gpu_types
    ]  # fmt: skip  # as the columns
    columns = (
        "gpu type", "GPU-hours provisioned", "covered", "coverage", "reserved, no commitment", "spot",
        "on demand",
    )  # fmt: skip  # one name a line says no more
    say("")
    show(table(columns, rows, right=columns[1:]))


def _spot(spot: Sequence[SpotSavings], currency: str) -> None:
    if not spot:
        return
    money = partial(shown_money, currency=currency)
    rows = [
        (
            row.gpu_type, row.region, shown(row.gpu_hours, 3), money(row.cost),
            money(row.list_cost), money(row.savings),
        )
        for row in spot
    ]  # fmt: skip  # as the columns
    columns = ("spot", "region", "GPU-hours", f"cost {currency}", "on demand", "savings")
    say("")
    show(table(columns, rows, right=columns[2:]))
