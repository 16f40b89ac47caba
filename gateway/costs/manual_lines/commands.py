"""florin manual-line …"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import Session, command
from gateway.costs.manual_lines.schemas import EndedFee, ManualLine, NewManualLine
from gateway.schemas.base import Listed

app = typer.Typer()

_PATH = "/finance/v1/manual-lines"
Number = Annotated[int, typer.Argument(metavar="ID", help="As `florin manual-line list` shows it.", min=1)]


@command(app, "add")
@with_options(NewManualLine)
def add(session: Session, *, changes: Json) -> None:
    """Add a monthly fee of a tenant or an adapter, or a charge, a credit or a refund on the next statement.

    Where the installation asks for two people, another one approves it first.

    Example: florin manual-line add --kind credit --tenant acme --amount 40 --reason "Outage of 3 November"
    """
    session.result(session.api.post(_PATH, changes, ManualLine), _described)


def _described(line: ManualLine) -> None:
    what = f"{line.kind.capitalize()} {line.id} of {clean(line.tenant)}: {clean(line.amount)}"
    if line.kind == "fee":
        until = f" until {clean(line.ends)}" if line.ends else ""
        what += f" per month from {clean(line.begins)}{until}"
    elif line.kind == "end":
        what = f"Fee {line.fee} of {clean(line.tenant)} ends on {clean(line.ends)}"
    elif line.month:
        what += f" on the statement of {clean(line.month)}"
    say(f"{what}.")
    if line.state == "pending":
        note(f"It counts once another person has approved it: florin manual-line approve {line.id}")


@command(app, "list")
def list_(
    session: Session,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.", show_default=False)] = None,
) -> None:
    """List manual lines, also withdrawn ones.

    Example: florin manual-line list --tenant acme
    """
    session.result(session.api.get(_PATH, Listed[ManualLine], {"tenant": tenant}), _listed)


def _listed(lines: Listed[ManualLine]) -> None:
    if not lines.data:
        note("No manual lines yet: florin manual-line add")
        return
    columns = (
        "id", "kind", "tenant", "adapter", "amount", "from", "until", "month", "state", "requested by",
        "approved by", "reason",
    )  # fmt: skip  # one name a line says no more
    rows = [
        (
            str(line.id), f"end of {line.fee}" if line.fee else line.kind, line.tenant, line.adapter,
            line.amount, line.begins, line.ends, line.month, line.state, line.requested_by,
            line.approved_by, line.reason,
        )
        for line in lines.data
    ]  # fmt: skip  # as the columns
    show(table(columns, rows, right=("amount",)))


@command(app, "approve")
def approve(session: Session, number: Number) -> None:
    """Approve a line that another person requested: from now on it counts.

    Example: florin manual-line approve 3
    """
    session.result(session.api.post(f"{_PATH}/{number}/approve", {}, ManualLine), _described)


@command(app, "withdraw")
def withdraw(session: Session, number: Number) -> None:
    """Withdraw a line that waits for approval. One that was approved stays: end the fee, or add its opposite.

    Example: florin manual-line withdraw 3
    """
    session.result(
        session.api.post(f"{_PATH}/{number}/withdraw", {}, ManualLine),
        lambda line: say(f"Line {line.id} is withdrawn."),
    )


@command(app, "end")
@with_options(EndedFee)
def end(session: Session, number: Number, *, changes: Json) -> None:
    """End a fee. Months that are closed keep it.

    Example: florin manual-line end 3 --until 2026-12-31 --reason "Contract ended"
    """
    session.result(session.api.post(f"{_PATH}/{number}/end", changes, ManualLine), _described)
