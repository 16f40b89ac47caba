"""florin price …"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.decimals import decimal
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import PriceYes, Session, command, post_price

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
        typer.Option(
            "--to", help="End of validity, ISO 8601, exclusive. Default: the next price without an end."
        ),
    ] = None,
    speedup: Annotated[
        str | None,
        typer.Option(help="Speed relative to the --reference GPU, for example 2.5."),
    ] = None,
    reference: Annotated[str | None, typer.Option(help="The GPU type that --speedup is relative to.")] = None,
    speedup_source: Annotated[
        str | None, typer.Option(help="Source of the speedup: who measured it, and how.")
    ] = None,
    yes: PriceYes = False,
) -> None:
    """Add an hourly rate. Rates are never edited: a new rate takes effect at its own start, and one with --to
    interrupts the open-ended rate, which resumes after it. To correct a rate: florin price correct.

    Closed months do not change: if a price affects their costs, the difference becomes correction rows in the
    open month.

    Example: florin price add --gpu-type H200 --rate 2.50 --from 2026-07-01
    """
    body: Json = {
        "gpu_type": gpu_type,
        "rate_per_gpu_hour": decimal("--rate", rate),
        "currency": currency,
        "purchase": purchase.value,
        "region": region,
    }
    optional = {
        "valid_from": valid_from,
        "valid_to": valid_to,
        "speedup": speedup if speedup is None else decimal("--speedup", speedup),
        "speedup_reference": reference,
        "speedup_source": speedup_source,
    }
    body |= {name: value for name, value in optional.items() if value is not None}
    session.result(post_price(session, "/admin/v1/prices", body, yes=yes), _added)


def _added(price: Json) -> None:
    until = f" to {clean(price['valid_to'])}" if price.get("valid_to") else ""
    say(
        f"{clean(price['gpu_type'])} costs {clean(price['rate_per_gpu_hour'])} {clean(price['currency'])} "
        f"per GPU-hour from {clean(price['valid_from'])}{until}."
    )
    for warning in price.get("warnings", ()):
        note(f"Warning: {clean(warning)}")


@command(app, "correct")
def correct(
    session: Session,
    *,
    number: Annotated[int, typer.Argument(metavar="ID", help="The price: see florin price list.")],
    reason: Annotated[str, typer.Option(help="Why, kept with the price and in the audit log.")],
    rate: Annotated[str | None, typer.Option(help="The right rate per GPU-hour.")] = None,
    gpu_type: Annotated[str | None, typer.Option(help="The right GPU type.")] = None,
    purchase: Annotated[Purchase | None, typer.Option(help="The right purchase model.")] = None,
    region: Annotated[
        str | None, typer.Option(help="The right region; empty for a price of all regions.")
    ] = None,
    valid_from: Annotated[
        str | None, typer.Option("--from", help="The right start of validity, ISO 8601.")
    ] = None,
    valid_to: Annotated[
        str | None, typer.Option("--to", help="The right end of validity, ISO 8601, exclusive.")
    ] = None,
    open_ended: Annotated[
        bool, typer.Option("--open-ended", help="It does not end: it is valid until the next price.")
    ] = False,
    speedup: Annotated[
        str | None, typer.Option(help="The right speed relative to the --reference GPU.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="The GPU type that --speedup is relative to.")] = None,
    speedup_source: Annotated[str | None, typer.Option(help="Source of the speedup.")] = None,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="It should not have been added: nothing replaces it.")
    ] = False,
    yes: PriceYes = False,
) -> None:
    """Correct a price, or withdraw it. Omitted options keep their values.

    The earlier row is kept: florin price list --history shows it. Where the corrected price no longer
    applies, the open-ended price before it resumes. Open months change at once; closed months do not change:
    the difference becomes correction rows in the open month.

    Example: florin price correct 3 --rate 2.50 --reason "contract says 2.50, typed 25.0"
    """
    optional = {
        "rate_per_gpu_hour": None if rate is None else decimal("--rate", rate),
        "gpu_type": gpu_type,
        "purchase": None if purchase is None else purchase.value,
        "region": region,
        "valid_from": valid_from,
        "valid_to": valid_to,
        "speedup": None if speedup is None else decimal("--speedup", speedup),
        "speedup_reference": reference,
        "speedup_source": speedup_source,
        "open_ended": open_ended or None,
        "withdraw": withdraw or None,
    }
    said = {name: value for name, value in optional.items() if value is not None}
    if not said:
        raise UsageError("Say what is right, for example --rate 2.50, or use --withdraw.")
    path = f"/admin/v1/prices/{number}/correct"
    session.result(post_price(session, path, {"reason": reason, **said}, yes=yes), _corrected)


def _corrected(price: Json) -> None:
    if price["withdrawn"]:
        say(f"Price {price['supersedes']} of {clean(price['gpu_type'])} was withdrawn.")
        return
    say(f"Price {price['supersedes']} was corrected; the new price is {price['id']}.")
    _added(price)


@command(app, "list")
def list_(
    session: Session,
    *,
    history: Annotated[
        bool, typer.Option("--history", help="Also show prices that were corrected or withdrawn, and why.")
    ] = False,
) -> None:
    """List the prices in force.

    Example: florin price list --history
    """

    def people(body: Json) -> None:
        if not body["data"]:
            note("No prices yet: florin price add --gpu-type … --rate …")
        rows = [[*_row(p), *(_history(p) if history else ())] for p in body["data"]]
        columns = [*_COLUMNS, *(("recorded", "history") if history else ())]
        show(table(columns, rows, right=("id", "per GPU-hour")))

    params = {"history": "true"} if history else None
    session.result(session.api.get("/admin/v1/prices", params), people)


_COLUMNS = ("id", "gpu type", "per GPU-hour", "currency", "purchase", "region", "from", "to", "speedup")


def _row(price: Json) -> list[str | None]:
    return [
        str(price["id"]), price["gpu_type"], price["rate_per_gpu_hour"], price["currency"], price["purchase"],
        price["region"], price["valid_from"], price.get("valid_to"), _speedup(price),
    ]  # fmt: skip  # as the columns


def _history(price: Json) -> list[str]:
    said = []
    if price["supersedes"] is not None:
        verb = "withdraws" if price["withdrawn"] else "corrects"
        said.append(f"{verb} {price['supersedes']}: {price['reason']}")
    if price["superseded_by"] is not None:
        said.append(f"superseded by {price['superseded_by']}")
    return [price["recorded_at"], "; ".join(said)]


def _speedup(price: Json) -> str | None:
    if price.get("speedup") is None:
        return None
    return f"{price['speedup']} times {price['speedup_reference']} ({price['speedup_source']})"
