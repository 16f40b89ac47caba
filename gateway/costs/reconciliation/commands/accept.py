"""florin cost accept | withdraw-acceptance | acceptances"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError, segment
from gateway.commands.output import busy, clean, note, say, show, table
from gateway.commands.session import Session, command
from gateway.costs.reconciliation.schemas.reconciliation import (
    AcceptanceEntry,
    AcceptedLine,
    AcceptedNow,
    WithdrawnAcceptance,
)
from gateway.schemas.base import Listed

app = typer.Typer()

_PATH = "/finance/v1/reconciliation/acceptances"


@command(app, "accept")
def accept(
    session: Session,
    lines: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LINE]...", help="Lines shown by `florin cost reconcile`."),
    ] = None,
    *,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log.")],
    month: Annotated[
        str | None, typer.Option(help="Month of --kind, for example 2026-07.", show_default=False)
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Accept all lines of a kind, as --json of `florin cost reconcile` names it, for example "
            "rounding.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Accept differences between the bill and Florin's figures, at their current amounts.

    A cause may be identified and its cost not accepted: that takes a person, and the audit log says who, when
    and why. If an amount changes later, its acceptance is void.

    Example: florin cost accept 2026-10-8f3b2c91 --reason "Trial of September, returned on the 2nd"
    """
    if not lines and not (kind and month):
        raise UsageError("Name lines (florin cost reconcile shows them), or --month with --kind.")
    body: Json = {"lines": lines or [], "month": month, "kind": kind, "reason": reason}
    with busy("Accepting"):
        accepted = session.api.post(_PATH, body, AcceptedNow)
    session.result(accepted, _accepted)


def _accepted(accepted: AcceptedNow) -> None:
    for line in accepted.data:
        say(f"Accepted {clean(line.line)}: {_amount(line)}; {clean(line.reason)}.")
    note("To withdraw: florin cost withdraw-acceptance LINE --reason …")


def _amount(line: AcceptedLine | WithdrawnAcceptance) -> str:
    if line.tokens is not None:
        return f"{line.tokens:+,} tokens"
    return f"{clean(line.gpu_hours)} GPU-hours, cost {clean(line.cost)}"


@command(app, "withdraw-acceptance")
def withdraw_acceptance(
    session: Session,
    line: Annotated[str, typer.Argument(help="The line shown by `florin cost acceptances`.")],
    *,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log.")],
) -> None:
    """Withdraw the acceptance of a difference. Both stay in the audit log.

    Example: florin cost withdraw-acceptance 2026-10-8f3b2c91 --reason "The provider will refund it"
    """
    path = f"{_PATH}/{segment(line)}/withdraw"
    session.result(
        session.api.post(path, {"reason": reason}, WithdrawnAcceptance),
        lambda withdrawn: say(f"{clean(withdrawn.line)} is no longer accepted: {_amount(withdrawn)}."),
    )


@command(app, "acceptances")
def acceptances(
    session: Session,
    *,
    month: Annotated[str, typer.Option(help="Month, for example 2026-07.")],
) -> None:
    """List who accepted which differences of a month, when and why.

    Example: florin cost acceptances --month 2026-10
    """
    session.result(session.api.get(_PATH, Listed[AcceptanceEntry], {"month": month}), _listed)


def _listed(acceptances: Listed[AcceptanceEntry]) -> None:
    if not acceptances.data:
        note("Nothing was accepted.")
        return
    rows = [
        (
            entry.line, "accepted" if entry.accepted else "withdrawn", entry.gpu_hours, entry.cost,
            entry.tokens, entry.by, entry.recorded_at, entry.reason,
        )
        for entry in acceptances.data
    ]  # fmt: skip  # as the columns
    columns = ("line", "", "GPU-hours", "cost", "tokens", "by key", "at", "reason")
    show(table(columns, rows, right=columns[2:5]))
