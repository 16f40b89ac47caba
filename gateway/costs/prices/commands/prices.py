"""florin price …"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import PriceYes, Session, command, post_price
from gateway.costs.prices.schemas import AddedPrice, ListedPrice, NewPrice, PriceCorrection
from gateway.schemas.base import Listed

app = typer.Typer()


@command(app, "add")
@with_options(NewPrice)
def add(session: Session, *, changes: Json, yes: PriceYes = False) -> None:
    """Add an hourly rate. Rates are never edited: a new rate takes effect at its own start, and one with --to
    interrupts the open-ended rate, which resumes after it. To correct a rate: florin price correct.

    Closed months do not change: if a price affects their costs, the difference becomes correction rows in the
    open month.

    Example: florin price add --gpu-type H200 --rate 2.50 --from 2026-07-01
    """
    session.result(post_price(session, "/admin/v1/prices", changes, AddedPrice, yes=yes), _added)


def _added(price: AddedPrice) -> None:
    until = f" to {clean(price.valid_to)}" if price.valid_to else ""
    say(
        f"{clean(price.gpu_type)} costs {clean(price.rate_per_gpu_hour)} {clean(price.currency)} "
        f"per GPU-hour from {clean(price.valid_from)}{until}."
    )
    _warn(price)


def _warn(price: AddedPrice) -> None:
    for warning in price.warnings:
        note(f"Warning: {clean(warning)}")


@command(app, "correct")
@with_options(PriceCorrection)
def correct(
    session: Session,
    number: Annotated[int, typer.Argument(metavar="ID", help="The price: see florin price list.")],
    *,
    changes: Json,
    yes: PriceYes = False,
) -> None:
    """Correct a price, or withdraw it. Omitted options keep their values.

    The earlier row is kept: florin price list --history shows it. Where the corrected price no longer
    applies, the open-ended price before it resumes. Open months change at once; closed months do not change:
    the difference becomes correction rows in the open month.

    Example: florin price correct 3 --rate 2.50 --reason "contract says 2.50, typed 25.0"
    """
    if not changes.keys() - {"reason"}:
        raise UsageError("Say what is right, for example --rate 2.50, or use --withdraw.")
    path = f"/admin/v1/prices/{number}/correct"
    session.result(post_price(session, path, changes, AddedPrice, yes=yes), _corrected)


def _corrected(price: AddedPrice) -> None:
    if price.withdrawn:
        say(f"Price {price.supersedes} of {clean(price.gpu_type)} was withdrawn.")
        _warn(price)
        return
    say(f"Price {price.supersedes} was corrected; the new price is {price.id}.")
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

    def people(prices: Listed[ListedPrice]) -> None:
        if not prices.data:
            note("No prices yet: florin price add --gpu-type … --rate …")
        rows = [[*_row(price), *(_history(price) if history else ())] for price in prices.data]
        columns = [*_COLUMNS, *(("recorded", "history") if history else ())]
        show(table(columns, rows, right=("id", "per GPU-hour")))

    params = {"history": "true"} if history else None
    session.result(session.api.get("/admin/v1/prices", Listed[ListedPrice], params), people)


_COLUMNS = ("id", "gpu type", "per GPU-hour", "currency", "purchase", "region", "from", "to", "speedup")


def _row(price: ListedPrice) -> list[str | None]:
    return [
        str(price.id), price.gpu_type, price.rate_per_gpu_hour, price.currency, price.purchase,
        price.region, price.valid_from, price.valid_to, _speedup(price),
    ]  # fmt: skip  # as the columns


def _history(price: ListedPrice) -> list[str]:
    remarks = []
    if price.supersedes is not None:
        verb = "withdraws" if price.withdrawn else "corrects"
        remarks.append(f"{verb} {price.supersedes}: {price.reason}")
    if price.superseded_by is not None:
        remarks.append(f"superseded by {price.superseded_by}")
    return [price.recorded_at, "; ".join(remarks)]


def _speedup(price: ListedPrice) -> str | None:
    if price.speedup is None:
        return None
    return f"{price.speedup} times {price.speedup_reference} ({price.speedup_source})"
