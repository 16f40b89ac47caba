"""florin commitment …"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import typer

from gateway.commands.client import Json
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import Session, command
from gateway.costs.commitments.schemas import Commitment, NewCommitment
from gateway.schemas.base import Listed

app = typer.Typer()

_PATH = "/finance/v1/commitments"


@command(app, "add")
@with_options(NewCommitment)
def add(session: Session, *, changes: Json) -> None:
    """Add a commitment: GPUs that are paid for whether an engine is up or not.

    Engines registered with --purchase reserved use it. Commitments are never edited: withdraw a wrong one and
    add it again.

    Example: florin commitment add --gpu-type H100 --gpus 8 --from 2026-10-01 --to 2027-10-01 --rate 1.80
    """
    session.result(session.api.post(_PATH, changes, Commitment), _added)


def _added(body: Commitment) -> None:
    upfront = "" if Decimal(body.upfront) == 0 else f" and {clean(body.upfront)} upfront"
    say(
        f"Commitment {body.id}: {body.gpus:,} {clean(body.gpu_type)} at "
        f"{clean(body.rate_per_gpu_hour)} {clean(body.currency)} per GPU-hour{upfront}, from "
        f"{clean(body.valid_from)} to {clean(body.valid_to)}."
    )


@command(app, "list")
def list_(session: Session) -> None:
    """List the commitments, including withdrawn ones.

    Example: florin commitment list
    """
    session.result(session.api.get(_PATH, Listed[Commitment]), _listed)


def _listed(body: Listed[Commitment]) -> None:
    if not body.data:
        note("No commitments yet: florin commitment add")
        return
    rows = [
        (
            str(commitment.id), commitment.description, commitment.gpu_type, commitment.gpus,
            commitment.region, commitment.rate_per_gpu_hour, commitment.upfront, commitment.currency,
            commitment.valid_from, commitment.valid_to, commitment.withdrawn_reason,
        )
        for commitment in body.data
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
    withdrawn = session.api.post(f"{_PATH}/{number}/withdraw", {"reason": reason}, Commitment)
    session.result(withdrawn, lambda b: say(f"Commitment {b.id} is withdrawn: {clean(b.withdrawn_reason)}"))
