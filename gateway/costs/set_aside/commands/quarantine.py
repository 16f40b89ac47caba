"""florin cost quarantine | dismiss"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.output import clean, note, say, show, table, when
from gateway.commands.session import Session, command
from gateway.costs.set_aside.schemas import Dismissed, Quarantine, QuarantinedRecord
from gateway.schemas.base import Json

app = typer.Typer()

_REASONS = {
    "differs": "the ledger has this record with other content",
    "pruned": "arrived after the records of its time were deleted",
    "excluded": "an operator excluded it",
}


@command(app, "quarantine")
def quarantine(
    session: Session,
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Show at most this many, the newest first.")
    ] = 100,
) -> None:
    """List the records in quarantine, and why. They are in no report and no bill.

    Example: florin cost quarantine
    """
    session.result(session.api.get("/finance/v1/quarantine", Quarantine, {"limit": limit}), _listed)


def _listed(quarantine: Quarantine) -> None:
    if not quarantine.data:
        note("No record is in quarantine.")
        return
    rows = [
        [
            item.id, record.get("tenant"), record.get("engine"), _ended(record),
            record.get("prompt_tokens"), record.get("completion_tokens"), _reason(item), item.recorded_at,
        ]
        for item in quarantine.data
        for record in [item.record]
    ]  # fmt: skip  # as the columns
    heads = ("record", "tenant", "engine", "ended", "input", "output", "reason", "since")
    show(table(heads, rows, right=("input", "output")))
    note("Of those that rightly are in no bill: florin cost dismiss RECORD --reason …")
    if quarantine.total > len(rows):
        note(f"The newest {len(rows):,} of {quarantine.total:,}; --limit shows more.")


def _ended(record: Json) -> str:
    """An excluded record may have an impossible time."""
    try:
        return when(record.get("ended"))
    except (OSError, OverflowError, ValueError, TypeError):
        return str(record.get("ended"))


def _reason(item: QuarantinedRecord) -> str:
    """For a record that differs, with the fields that do: the stored values first."""
    reason = _REASONS[item.reason]
    changed = [
        f"{name} {stored}, not {item.record.get(name)}" for name, stored in (item.stored or {}).items()
    ]
    reason = f"{reason}: {'; '.join(changed)}" if changed else reason
    return f"{reason}; dismissed: {item.dismissal.reason}" if item.dismissal else reason


@command(app, "dismiss")
def dismiss(
    session: Session,
    records: Annotated[
        list[str],
        typer.Argument(metavar="RECORD...", help="Records shown by `florin cost quarantine`."),
    ],
    *,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log.")],
) -> None:
    """Decide that records in quarantine rightly are in no report and no bill.

    They stay listed, and no longer keep their month from being reconciled. Repeating it changes nothing.

    Example: florin cost dismiss 0193f0a2-8c01-7000-8000-9a41c6e0d3b7 --reason "The same log, restored twice"
    """
    body = {"records": records, "reason": reason}
    session.result(session.api.post("/finance/v1/quarantine/dismiss", body, Dismissed), _dismissed)


def _dismissed(done: Dismissed) -> None:
    for record in done.dismissed:
        say(f"Dismissed {clean(record)}.")
    if not done.dismissed:
        note("They were dismissed before; nothing to do.")
