"""florin registry …"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json
from gateway.commands.output import note, say, show, table
from gateway.commands.session import Session, command, confirm

app = typer.Typer()

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]


@command(app, "show")
def show_(session: Session) -> None:
    """Compare the registry in Redis with the one that this gateway knows.

    Example: florin registry show
    """
    session.result(session.api.get("/admin/v1/registry"), _people)


@command(app, "restore")
def restore(session: Session, *, yes: Yes = False) -> None:
    """Restore the registry that this gateway knows to Redis. Later changes in Redis are dropped.

    Example: florin registry restore
    """
    _decide(session, "restore", "Restore what this gateway knows, and drop what is in Redis?", yes=yes)


@command(app, "accept")
def accept(session: Session, *, yes: Yes = False) -> None:
    """Accept the registry in Redis, after an intended reset or a restored backup.

    Example: florin registry accept
    """
    _decide(session, "accept", "Accept what is in Redis, and give up what is missing there?", yes=yes)


def _decide(session: Session, decision: str, question: str, *, yes: bool) -> None:
    found = session.api.get("/admin/v1/registry")
    if found["status"] == "ok":
        session.result(found, _people)
        return
    if not yes and not session.json:
        _people(found)
    confirm(question, yes=yes, unattended=False)
    session.result(session.api.post(f"/admin/v1/registry/{decision}", {"found": found["found"]}), _people)


def _people(body: Json) -> None:
    if body["status"] == "ok":
        counts = ", ".join(f"{count} {kind}s" for kind, count in body["known"].items())
        say(f"Redis holds the registry that this gateway knows: {counts}.")
        return
    rows = [(kind, body["known"][kind], body["left"][kind]) for kind in body["known"]]
    show(table(("kind", "known here", "in Redis"), rows))
    for kind, told in body["differences"].items():
        for what, ids in told.items():
            more = " …" if ids["count"] > len(ids["first"]) else ""
            note(f"{kind}, {what} in Redis: {ids['count']} ({', '.join(ids['first'])}{more})")
    note(f"{body['reason']} This gateway serves what it knows and accepts no changes.")
    note("Run florin registry restore to put it back, or florin registry accept to keep what is in Redis.")
