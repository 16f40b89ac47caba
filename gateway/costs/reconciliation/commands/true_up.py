"""florin cost true-up"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from gateway.commands.client import segment
from gateway.commands.output import busy, clean, note, say, show, table
from gateway.commands.session import REFUSED, Session, command, confirm
from gateway.costs.reconciliation.schemas.reconciliation import RecordedTrueUp, TrueUp, TrueUps
from gateway.units import shown_cents

app = typer.Typer()


@command(app, "true-up")
def true_up(
    session: Session,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="Month, for example 2026-10.")],
    *,
    invoice: Annotated[
        str | None,
        typer.Option(
            help="The invoice's total, for example 3032.88: refused unless the imported lines sum to it.",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        str, typer.Option(help="Percentage that need not be accepted, for example 0.5.")
    ] = "0.1",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the true-up, and what is recorded; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
) -> None:
    """Set a month's cost to the invoice's, with its credits, taxes and commitments.

    Each cause of a difference becomes a line of its own, which belongs to no tenant: statements do not
    change. Everything that `florin cost reconcile` shows must be matched or accepted, but for the tolerance.
    If the bill or the month changes, true it up again; the earlier true-up is kept. Exit code 1 if the month
    cannot be trued up.

    Example: florin cost true-up 2026-10 --invoice 3032.88
    """
    path = f"/finance/v1/true-ups/{segment(month)}"
    with busy("Comparing with the bill"):
        true_ups = session.api.get(path, TrueUps, {"tolerance": tolerance})
    preview = true_ups.preview
    if dry_run or preview is None:
        session.result(true_ups, _state)
        if preview is None:
            raise typer.Exit(REFUSED)
        return
    known = true_ups.current and true_ups.recorded[0].books == preview.books
    if not known:
        if not session.json:
            _shown(preview)
        confirm(
            f"Set the cost of {month} to {_total(preview)}?",
            yes=yes,
            unattended=False,
        )
    recorded = session.api.post(path, {"invoice": invoice, "tolerance": tolerance}, RecordedTrueUp)
    session.result(recorded, partial(_recorded, known=known))


def _state(true_ups: TrueUps) -> None:
    for sentence in true_ups.blocked:
        note(f"Cannot be trued up: {clean(sentence)}")
    if true_ups.preview is not None:
        _shown(true_ups.preview)
    for index, recorded in enumerate(true_ups.recorded):
        state = "the same" if true_ups.current and not index else "superseded" if index else "out of date"
        note(
            f"Recorded at {clean(recorded.recorded_at)} by {clean(recorded.by)}: "
            f"{_total(recorded)} ({state})."
        )


def _shown(preview: TrueUp) -> None:
    books = "closed" if preview.books == "closed" else "open: preliminary"
    listed = f"provisioned GPU cost at list price ({books})"
    money = partial(shown_cents, currency=preview.currency)
    rows: list[list[str | Text]] = [[listed, Text(""), money(preview.list_amount_cents)]]
    for line in preview.lines:
        amount = money(line.amount_cents, sign="+")
        rows.append([f"  {line.reason}", clean(line.gpu_hours), amount])
    rows.append([Text("invoice", "bold"), Text(""), money(preview.invoice_amount_cents)])
    columns = ("", "GPU-hours", clean(preview.currency))
    show(table(columns, rows, right=columns[1:]))


def _recorded(true_up: RecordedTrueUp, *, known: bool) -> None:
    month, total = clean(true_up.month), _total(true_up)
    if known:
        say(f"{month} was trued up to {total} already, {clean(true_up.recorded_at)}.")
    else:
        say(f"{month} cost {total}, as invoiced. The differences belong to no tenant.")


def _total(true_up: TrueUp) -> str:
    return f"{shown_cents(true_up.invoice_amount_cents, true_up.currency)} {clean(true_up.currency)}"
