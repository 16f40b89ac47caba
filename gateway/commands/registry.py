"""florin registry …"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json
from gateway.commands.output import note, say, show, table
from gateway.commands.session import Session, command, confirm

app = typer.Typer()

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@command(app, "show")
def show_(session: Session) -> None:
    """Say whether Redis still holds the registry that this gateway knows, and what differs.

    Example: florin registry show
    """
    session.result(session.api.get("/admin/v1/registry"), _people)


@command(app, "restore")
def restore(session: Session, *, yes: Yes = False) -> None:
    """Put the registry that this gateway knows back into Redis. What came into Redis meanwhile is dropped.

    Example: florin registry restore
    """
    _decide(session, "restore", "Put back what this gateway knows, and drop what Redis has?", yes=yes)


@command(app, "accept")
def accept(session: Session, *, yes: Yes = False) -> None:
    """Go on with the registry that Redis has now: for an intended reset, or a backup put back on purpose.

    Example: florin registry accept
    """
    _decide(session, "accept", "Go on with what Redis has, and give up what is missing there?", yes=yes)


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
    note(f"{body['reason']} This gateway serves what it knows, and changes nothing.")
    note("florin registry restore puts that back; florin registry accept goes on with what Redis has.")
