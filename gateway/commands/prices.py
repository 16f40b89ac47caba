"""florin price …, florin cost …"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated

import typer
from rich.text import Text

from gateway.commands.client import Json, UsageError
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import Session, command

prices = typer.Typer(no_args_is_help=True, help="GPU hourly rates over time.")
costs = typer.Typer(no_args_is_help=True, help="What each customer used and cost.")


class Purchase(StrEnum):
    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"


@command(prices, "add")
def add(
    session: Session,
    *,
    gpu_type: Annotated[str, typer.Option(help="As the engines are labelled, for example H200.")],
    rate: Annotated[str, typer.Option(help="Per GPU-hour, a decimal of at most 6 places, for example 2.50.")],
    currency: Annotated[str, typer.Option(help="Three letters.")] = "USD",
    purchase: Annotated[Purchase, typer.Option(help="How the GPU is bought.")] = Purchase.ON_DEMAND,
    region: Annotated[
        str, typer.Option(help="Where it stands, if rates differ by it.", show_default=False)
    ] = "",
    valid_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="ISO time from which it holds. Left out: a GPU type's first price holds for all time "
            "before, too, and a later one from now on.",
        ),
    ] = None,
) -> None:
    """Add an hourly rate. Rates are never edited: a later one takes over from its own time on.

    Example: florin price add --gpu-type H200 --rate 2.50 --from 2026-07-01
    """
    body: Json = {
        "gpu_type": gpu_type,
        "rate_per_gpu_hour": _decimal(rate),
        "currency": currency,
        "purchase": purchase.value,
        "region": region,
    }
    if valid_from is not None:
        body["valid_from"] = valid_from
    session.result(
        session.api.post("/admin/v1/prices", body),
        lambda b: say(
            f"{clean(b['gpu_type'])} costs {clean(b['rate_per_gpu_hour'])} {clean(b['currency'])} "
            f"per GPU-hour from {clean(b['valid_from'])}."
        ),
    )


@command(prices, "list")
def list_(session: Session) -> None:
    """List the price book.

    Example: florin price list
    """

    def people(body: Json) -> None:
        if not body["data"]:
            note("No prices yet: florin price add --gpu-type … --rate …")
        rows = [
            (
                p["gpu_type"],
                p["rate_per_gpu_hour"],
                p["currency"],
                p["purchase"],
                p["region"],
                p["valid_from"],
                p.get("valid_to"),
            )
            for p in body["data"]
        ]
        columns = ("gpu type", "per GPU-hour", "currency", "purchase", "region", "from", "to")
        show(table(columns, rows, right=("per GPU-hour",)))

    session.result(session.api.get("/admin/v1/prices"), people)


@command(costs, "report")
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


def _decimal(text: str) -> str:
    """Checked here so that a slip is a usage error; sent as text, never as a float."""
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise UsageError(f"--rate: {text!r} is not a decimal number like 2.50.") from error
    if not value.is_finite() or value < 0:
        raise UsageError(f"--rate: {text!r} must be zero or more.")
    return text


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
