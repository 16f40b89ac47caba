"""florin cost true-up"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from gateway.commands.client import Json, segment
from gateway.commands.output import busy, clean, note, say, show, table
from gateway.commands.session import REFUSED, Session, command, confirm
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
        found = session.api.get(path, {"tolerance": tolerance})
    if dry_run or found["preview"] is None:
        session.result(found, _found)
        if found["preview"] is None:
            raise typer.Exit(REFUSED)
        return
    preview = found["preview"]
    known = found["current"] and found["recorded"][0]["books"] == preview["books"]
    if not known:
        if not session.json:
            _shown(preview)
        confirm(
            f"Set the cost of {month} to {shown_cents(preview['invoice_amount_cents'])} "
            f"{preview['currency']}?",
            yes=yes,
            unattended=False,
        )
    done = session.api.post(path, {"invoice": invoice, "tolerance": tolerance})
    session.result(done, lambda b: _recorded(b, known=known))


def _found(body: Json) -> None:
    for sentence in body["blocked"]:
        note(f"Cannot be trued up: {clean(sentence)}")
    if body["preview"] is not None:
        _shown(body["preview"])
    for index, one in enumerate(body["recorded"]):
        state = "the same" if body["current"] and not index else "superseded" if index else "out of date"
        total = f"{shown_cents(one['invoice_amount_cents'])} {clean(one['currency'])}"
        note(f"Recorded at {clean(one['at'])} by {clean(one['by'])}: {total} ({state}).")


def _shown(one: Json) -> None:
    books = "closed" if one["books"] == "closed" else "open: preliminary"
    listed = f"provisioned GPU cost at list price ({books})"
    rows: list[list[str | Text]] = [[listed, Text(""), shown_cents(one["list_amount_cents"])]]
    for line in one["lines"]:
        amount = shown_cents(line["amount_cents"], sign="+")
        rows.append([f"  {line['reason']}", clean(line["gpu_hours"]), amount])
    rows.append([Text("invoice", "bold"), Text(""), shown_cents(one["invoice_amount_cents"])])
    columns = ("", "GPU-hours", clean(one["currency"]))
    show(table(columns, rows, right=columns[1:]))


def _recorded(body: Json, *, known: bool) -> None:
    total = f"{shown_cents(body['invoice_amount_cents'])} {clean(body['currency'])}"
    if known:
        say(f"{clean(body['month'])} was trued up to {total} already, {clean(body['at'])}.")
    else:
        say(f"{clean(body['month'])} cost {total}, as invoiced. The differences belong to no tenant.")
