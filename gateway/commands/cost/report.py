"""florin cost report"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import typer
from rich.text import Text

from gateway.commands.client import Json, UsageError
from gateway.commands.cost.app import app
from gateway.commands.output import clean, note, show, table
from gateway.commands.session import Session, command


@command(app, "report")
def report(
    session: Session,
    *,
    by: Annotated[
        str, typer.Option(help="Of tenant, adapter, version, gpu_type, engine, hour.")
    ] = "tenant,adapter,gpu_type",
    month: Annotated[str | None, typer.Option(help="For example 2026-07, UTC.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="ISO time, included.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="ISO time, not included.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
) -> None:
    """Report requests, tokens and cost per tenant, adapter and GPU type; this month if no time is given.

    Example: florin cost report --month 2026-07 --by tenant,gpu_type
    """
    if month and (start or end):
        raise UsageError("--month and --from/--to exclude each other.")
    params = {"by": by, "month": month, "from": start, "to": end, "tenant": tenant}
    session.result(session.api.get("/finance/v1/costs", params), _report)


_EMPTY = {"adapter": "(base model)"}


def _report(body: Json) -> None:
    groups = body["by"]
    rows = [[*(row[g] or _EMPTY.get(g, "") for g in groups), *_figures(row)] for row in body["rows"]]
    blank = [Text("")] * (len(groups) - 1)
    if rows:
        rows.append([Text("total", "bold"), *blank, *_figures(body["totals"])])
    if (wasted := body["retry_waste"]["totals"])["requests"]:
        rows.append([Text("retries, not billed", "dim"), *blank, *_figures(wasted)])
    currency = f"cost {body['currency']}" if body["currency"] else "cost"
    heads = ("requests", "prompt", "cached", "completion", "GPU-seconds", currency)
    note(f"{clean(body['from'])} to {clean(body['to'])}")
    if not rows:
        note("No usage in that time.")
        return
    show(table([*(g.replace("_", " ") for g in groups), *heads], rows, right=heads))
    for gpu_type in body["missing_prices"]:
        note(f"No price for {clean(gpu_type)}: florin price add --gpu-type {clean(gpu_type)} --rate …")


def _figures(row: Json) -> list[str]:
    """Costs to six places, for people; --json has them exactly."""
    counts = (row["requests"], row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"])
    cost = "-" if row["cost"] is None else f"{Decimal(row['cost']):,.6f}"
    return [*(f"{n:,}" for n in counts), f"{row['gpu_seconds']:,.3f}", cost]
