"""florin cost adapters"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from adapters.wording import counted
from gateway.commands.client import UsageError
from gateway.commands.output import clean, note, show, table
from gateway.commands.session import Session, command
from gateway.costs.adapter_costs.schemas import AdapterCostReport, AdapterCosts
from gateway.costs.forecasting.commands.ahead import unsaid
from gateway.units import shown, shown_money

app = typer.Typer()


@command(app, "adapters")
def adapters(
    session: Session,
    *,
    month: Annotated[str | None, typer.Option(help="Month in UTC. Default: this month.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="Start, ISO 8601, inclusive.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="End, ISO 8601, exclusive.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Adapters to show, those with the most expensive slots first.")
    ] = 30,
) -> None:
    """Show what each adapter costs besides its requests: its loads, and the slots that it holds.

    A slot's cost is an equal share of its engine's cost. It is not an additional cost; it shows what rarely
    used adapters occupy.

    Example: florin cost adapters --month 2026-07
    """
    if month and (start or end):
        raise UsageError("--month cannot be combined with --from or --to.")
    params = {"month": month, "from": start, "to": end}
    report = session.api.get("/finance/v1/adapters", AdapterCostReport, params)
    session.result(report, lambda report: _people(report, limit))


def _people(body: AdapterCostReport, limit: int) -> None:
    if not body.rows:
        note("No adapter was used or resident in this time.")
        return
    currency = clean(body.currency)
    rows = [_row(clean(row.adapter), row, currency) for row in body.rows[:limit]]
    left = len(body.rows) - limit
    rows.append([Text("")] * 8)
    rows.append(_row(f"{body.rare.adapters:,} rarely used", body.rare, currency))
    rows.append(_row(f"all {body.total.adapters:,}", body.total, currency))
    columns = (
        "adapter", "requests", f"cost {currency}", "loads", "of which loads", "slot-hours", "engines",
        "slot share",
    )  # fmt: skip  # as the rows
    show(table(columns, rows, right=columns[1:]))
    if left > 0:
        note(f"{counted(left, 'more adapter')}: --limit {len(body.rows)} shows all.")
    note(
        "Rarely used: fewer than ten requests a day. The slot share is an equal part of the engines' cost, "
        "and part of no bill: an engine costs the same with an empty slot."
    )
    if body.total.load_cost is None:
        note("Some loads were on GPUs that are not calibrated or have no price: run florin calibrate.")
    unsaid(body)


def _row(name: str, row: AdapterCosts, currency: str) -> list[str | Text | int]:
    return [
        name, row.requests, shown_money(row.cost, currency), row.loads, shown_money(row.load_cost, currency),
        shown(row.slot_hours), row.engines, shown_money(row.slot_cost, currency),
    ]  # fmt: skip  # as the columns
