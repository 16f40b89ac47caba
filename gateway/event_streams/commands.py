"""florin events …"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from gateway.commands.client import Json, segment
from gateway.commands.options import with_options
from gateway.commands.output import note, show, table
from gateway.commands.session import Session, YesInScripts, command, confirm
from gateway.event_streams.schemas import EventStream, ReplayedStream, ReplayFrom, SkippedStream, SkipUntil
from gateway.schemas.base import Listed

app = typer.Typer()

_COLUMNS = ("stream", "to", "waiting", "oldest", "last delivery", "failure")

Stream = Annotated[str, typer.Argument(help="audit or usage.")]


@command(app, "status")
def status(session: Session) -> None:
    """Show the delivery of the audit and usage events that Florin sends to other systems.

    Example: florin events status
    """
    streams = session.api.get("/admin/v1/events", Listed[EventStream])
    session.result(streams, lambda streams: _show(streams.data))


@command(app, "replay")
@with_options(ReplayFrom)
def replay(session: Session, stream: Stream, *, changes: Json) -> None:
    """Send events again. They keep their ids, so a receiver that has them already can drop them.

    Example: florin events replay audit --from 2026-11-01
    """
    replayed = session.api.post(f"/admin/v1/events/{segment(stream)}/replay", changes, ReplayedStream)
    session.result(replayed, lambda s: _changed(s, f"{s.queued:,} queued to be sent again."))


@command(app, "skip")
@with_options(SkipUntil)
def skip(
    session: Session,
    stream: Stream,
    *,
    yes: YesInScripts = False,
    changes: Json,
) -> None:
    """Discard waiting events that were made before a time. Their receiver never gets them.

    Example: florin events skip audit --to 2026-11-01 --yes
    """
    question = f"Discard the events of {stream} that wait from before {changes['until']}?"
    confirm(question, yes=yes, unattended=False)
    skipped = session.api.post(f"/admin/v1/events/{segment(stream)}/skip", changes, SkippedStream)
    session.result(skipped, lambda s: _changed(s, f"{s.skipped:,} discarded."))


def _changed(stream: EventStream, result: str) -> None:
    _show([stream])
    note(result)


def _show(streams: Sequence[EventStream]) -> None:
    rows = [
        (
            stream.stream,
            stream.to or "no receiver",
            f"{stream.waiting:,}" + ("+" if stream.more else ""),
            stream.oldest or "",
            stream.advanced or "never",
            stream.failure or "",
        )
        for stream in streams
    ]
    show(table(_COLUMNS, rows))
    if not any(stream.to for stream in streams):
        note("Nothing is sent: set FLORIN_AUDIT_EVENTS_TO or FLORIN_USAGE_EVENTS_TO.")
