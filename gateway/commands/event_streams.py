"""florin events …"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json, segment
from gateway.commands.output import note, show, table
from gateway.commands.session import Session, command, confirm

app = typer.Typer()

_COLUMNS = ("stream", "to", "waiting", "oldest", "last delivery", "failure")

Stream = Annotated[str, typer.Argument(help="audit or usage.")]


@command(app, "status")
def status(session: Session) -> None:
    """Show the delivery of the audit and usage events that Florin sends to other systems.

    Example: florin events status
    """
    session.result(session.api.get("/admin/v1/events"), lambda body: _show(body["data"]))


@command(app, "replay")
def replay(
    session: Session,
    stream: Stream,
    *,
    since: Annotated[
        str, typer.Option("--from", help="Start, ISO 8601, UTC; inclusive.", show_default=False)
    ],
) -> None:
    """Send events again. They keep their ids, so a receiver that has them already can drop them.

    Example: florin events replay audit --from 2026-11-01
    """
    body = session.api.post(f"/admin/v1/events/{segment(stream)}/replay", {"since": since})
    session.result(body, lambda body: _changed(body, f"{body['queued']:,} queued to be sent again."))


@command(app, "skip")
def skip(
    session: Session,
    stream: Stream,
    *,
    until: Annotated[str, typer.Option("--to", help="End, ISO 8601, UTC; exclusive.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Discard waiting events that were made before a time. Their receiver never gets them.

    Example: florin events skip audit --to 2026-11-01 --yes
    """
    confirm(f"Give up the events of {stream} that wait from before {until}?", yes=yes, unattended=False)
    body = session.api.post(f"/admin/v1/events/{segment(stream)}/skip", {"until": until})
    session.result(body, lambda body: _changed(body, f"{body['skipped']:,} given up."))


def _changed(body: Json, what: str) -> None:
    _show([body])
    note(what)


def _show(streams: list[Json]) -> None:
    rows = [
        (
            one["stream"],
            one["to"] or "no receiver",
            f"{one['waiting']:,}" + ("+" if one["more"] else ""),
            one["oldest"] or "",
            one["advanced"] or "never",
            one["failure"] or "",
        )
        for one in streams
    ]
    show(table(_COLUMNS, rows))
    if not any(one["to"] for one in streams):
        note("Nothing is sent: set FLORIN_AUDIT_EVENTS_TO or FLORIN_USAGE_EVENTS_TO.")
