"""florin price …"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import Session, command

app = typer.Typer()


class Purchase(StrEnum):
    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"


@command(app, "add")
def add(
    session: Session,
    *,
    gpu_type: Annotated[str, typer.Option(help="GPU type of the engines, for example H200.")],
    rate: Annotated[
        str, typer.Option(help="Rate per GPU-hour with up to 6 decimal places, for example 2.50.")
    ],
    currency: Annotated[str, typer.Option(help="Three-letter code.")] = "USD",
    purchase: Annotated[Purchase, typer.Option(help="Purchase model.")] = Purchase.ON_DEMAND,
    region: Annotated[str, typer.Option(help="Region, if rates differ by region.", show_default=False)] = "",
    valid_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start of validity, ISO 8601. Default: all open months for the first price of its kind, "
            "now for a later one.",
        ),
    ] = None,
    valid_to: Annotated[
        str | None,
        typer.Option("--to", help="End of validity, ISO 8601, exclusive. Default: the next price."),
    ] = None,
    speedup: Annotated[
        str | None,
        typer.Option(help="Speed relative to the --reference GPU, for example 2.5."),
    ] = None,
    reference: Annotated[str | None, typer.Option(help="The GPU type that --speedup is relative to.")] = None,
    speedup_source: Annotated[
        str | None, typer.Option(help="Source of the speedup: who measured it, and how.")
    ] = None,
) -> None:
    """Add an hourly rate. Rates are never edited: a new rate takes effect at its own start.

    Closed months do not change: if a price affects their costs, the difference becomes correction rows in the
    open month.

    Example: florin price add --gpu-type H200 --rate 2.50 --from 2026-07-01
    """
    body: Json = {
        "gpu_type": gpu_type,
        "rate_per_gpu_hour": _decimal("--rate", rate),
        "currency": currency,
        "purchase": purchase.value,
        "region": region,
    }
    optional = {
        "valid_from": valid_from,
        "valid_to": valid_to,
        "speedup": speedup if speedup is None else _decimal("--speedup", speedup),
        "speedup_reference": reference,
        "speedup_source": speedup_source,
    }
    body |= {name: value for name, value in optional.items() if value is not None}
    session.result(
        session.api.post("/admin/v1/prices", body),
        lambda b: say(
            f"{clean(b['gpu_type'])} costs {clean(b['rate_per_gpu_hour'])} {clean(b['currency'])} "
            f"per GPU-hour from {clean(b['valid_from'])}."
        ),
    )


@command(app, "list")
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
                _speedup(p),
            )
            for p in body["data"]
        ]
        columns = ("gpu type", "per GPU-hour", "currency", "purchase", "region", "from", "to", "speedup")
        show(table(columns, rows, right=("per GPU-hour",)))

    session.result(session.api.get("/admin/v1/prices"), people)


def _speedup(price: Json) -> str | None:
    if price.get("speedup") is None:
        return None
    return f"{price['speedup']} times {price['speedup_reference']} ({price['speedup_source']})"


def _decimal(option: str, text: str) -> str:
    """Validated here so that a typo is a usage error; sent as text, never as a float."""
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise UsageError(f"{option}: {text!r} is not a decimal number like 2.50.") from error
    if not value.is_finite() or value < 0:
        raise UsageError(f"{option}: {text!r} must be zero or more.")
    return text
