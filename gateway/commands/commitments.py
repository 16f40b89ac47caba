"""florin commitment …"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import typer

from gateway.commands.client import Json
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import Session, command

app = typer.Typer()

_PATH = "/finance/v1/commitments"


@command(app, "add")
def add(
    session: Session,
    *,
    gpu_type: Annotated[str, typer.Option(help="GPU type of the engines, for example H200.")],
    gpus: Annotated[int, typer.Option(help="Number of GPUs that are paid for.", min=1)],
    valid_from: Annotated[str, typer.Option("--from", help="Start of the term, ISO 8601, UTC.")],
    valid_to: Annotated[str, typer.Option("--to", help="End of the term, ISO 8601, exclusive.")],
    rate: Annotated[
        str,
        typer.Option(
            help="Rate per GPU-hour, paid for every hour of the term, used or not. 0 if all is upfront."
        ),
    ],
    upfront: Annotated[str, typer.Option(help="Paid once, and amortised evenly over the term.")] = "0",
    currency: Annotated[str, typer.Option(help="Three-letter code.")] = "USD",
    region: Annotated[str, typer.Option(help="Region, if it is limited to one.", show_default=False)] = "",
    description: Annotated[str, typer.Option(help="The provider's name for it.", show_default=False)] = "",
) -> None:
    """Add a commitment: GPUs that are paid for whether an engine is up or not.

    Engines registered with --purchase reserved use it. Commitments are never edited: withdraw a wrong one and
    add it again.

    Example: florin commitment add --gpu-type H100 --gpus 8 --from 2026-10-01 --to 2027-10-01 --rate 1.80
    """
    body: Json = {
        "gpu_type": gpu_type, "gpus": gpus, "valid_from": valid_from, "valid_to": valid_to,
        "rate_per_gpu_hour": rate, "upfront": upfront, "currency": currency, "region": region,
        "description": description,
    }  # fmt: skip  # one name a line says no more
    session.result(session.api.post(_PATH, body), _added)


def _added(body: Json) -> None:
    upfront = "" if Decimal(body["upfront"]) == 0 else f" and {clean(body['upfront'])} upfront"
    say(
        f"Commitment {body['id']}: {body['gpus']:,} {clean(body['gpu_type'])} at "
        f"{clean(body['rate_per_gpu_hour'])} {clean(body['currency'])} per GPU-hour{upfront}, from "
        f"{clean(body['valid_from'])} to {clean(body['valid_to'])}."
    )


@command(app, "list")
def list_(session: Session) -> None:
    """List the commitments, including withdrawn ones.

    Example: florin commitment list
    """
    session.result(session.api.get(_PATH), _listed)


def _listed(body: Json) -> None:
    if not body["data"]:
        note("No commitments yet: florin commitment add")
        return
    rows = [
        (
            str(one["id"]), one["description"], one["gpu_type"], one["gpus"], one["region"],
            one["rate_per_gpu_hour"], one["upfront"], one["currency"], one["valid_from"], one["valid_to"],
            one["withdrawn_reason"],
        )
        for one in body["data"]
    ]  # fmt: skip  # as the columns
    columns = (
        "id", "commitment", "gpu type", "GPUs", "region", "per GPU-hour", "upfront", "currency", "from", "to",
        "withdrawn",
    )  # fmt: skip  # one name a line says no more
    show(table(columns, rows, right=("GPUs", "per GPU-hour", "upfront")))


@command(app, "withdraw")
def withdraw(
    session: Session,
    number: Annotated[int, typer.Argument(metavar="ID", help="As `florin commitment list` shows it.", min=1)],
    *,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log.")],
) -> None:
    """Withdraw a commitment that was recorded by mistake: it no longer counts, in any month.

    Example: florin commitment withdraw 3 --reason "Recorded twice"
    """
    body = session.api.post(f"{_PATH}/{number}/withdraw", {"reason": reason})
    session.result(body, lambda b: say(f"Commitment {b['id']} is withdrawn: {clean(b['withdrawn_reason'])}"))
