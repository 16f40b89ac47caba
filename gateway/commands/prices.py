"""florin price …"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import Session, command

prices = typer.Typer(no_args_is_help=True, help="GPU hourly rates over time.")


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


def _decimal(text: str) -> str:
    """Checked here so that a slip is a usage error; sent as text, never as a float."""
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise UsageError(f"--rate: {text!r} is not a decimal number like 2.50.") from error
    if not value.is_finite() or value < 0:
        raise UsageError(f"--rate: {text!r} must be zero or more.")
    return text
