"""florin cost quarantine"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json
from gateway.commands.output import note, show, table, when
from gateway.commands.session import Session, command

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
    session.result(session.api.get("/finance/v1/quarantine", {"limit": limit}), _listed)


def _listed(body: Json) -> None:
    found = body["data"]
    if not found:
        note("No record is in quarantine.")
        return
    rows = [
        [
            one["id"], record.get("tenant"), record.get("engine"), _ended(record),
            record.get("prompt_tokens"), record.get("completion_tokens"), _why(one), one["recorded_at"],
        ]
        for one in found
        for record in [one["record"]]
    ]  # fmt: skip  # as the columns
    heads = ("record", "tenant", "engine", "ended", "input", "output", "reason", "since")
    show(table(heads, rows, right=("input", "output")))
    if body["total"] > len(found):
        note(f"The newest {len(found):,} of {body['total']:,}; --limit shows more.")


def _ended(record: Json) -> str:
    """An excluded record may have an impossible time."""
    try:
        return when(record.get("ended"))
    except (OSError, OverflowError, ValueError, TypeError):
        return str(record.get("ended"))


def _why(one: Json) -> str:
    """The reason, and for a record that differs the fields, with the stored values first."""
    reason = _REASONS.get(one["reason"]) or str(one["reason"])
    changed = [f"{name} {was}, not {one['record'].get(name)}" for name, was in (one["stored"] or {}).items()]
    return f"{reason}: {'; '.join(changed)}" if changed else reason
