"""florin registry …"""

from __future__ import annotations

import typer

from gateway.commands.output import note, say, show, table
from gateway.commands.session import Session, Yes, command, confirm
from gateway.installation.schemas import Registry

app = typer.Typer()


@command(app, "show")
def show_(session: Session) -> None:
    """Compare the registry in Redis with the one that this gateway knows.

    Example: florin registry show
    """
    session.result(session.api.get("/admin/v1/registry", Registry), _people)


@command(app, "rewrite")
def rewrite(session: Session, *, yes: Yes = False) -> None:
    """Write the registry that this gateway knows to Redis again. Later changes in Redis are dropped.

    Example: florin registry rewrite
    """
    _decide(session, "rewrite", "Write what this gateway knows to Redis, and drop what is there?", yes=yes)


@command(app, "accept")
def accept(session: Session, *, yes: Yes = False) -> None:
    """Accept the registry in Redis, after an intended reset or a restored backup.

    Example: florin registry accept
    """
    _decide(session, "accept", "Accept what is in Redis, and give up what is missing there?", yes=yes)


def _decide(session: Session, decision: str, question: str, *, yes: bool) -> None:
    registry = session.api.get("/admin/v1/registry", Registry)
    if registry.status == "ok":
        session.result(registry, _people)
        return
    if not yes and not session.json:
        _people(registry)
    confirm(question, yes=yes, unattended=False)
    path = f"/admin/v1/registry/{decision}"
    session.result(session.api.post(path, {"found": registry.found}, Registry), _people)


def _people(registry: Registry) -> None:
    if registry.status == "ok":
        counts = ", ".join(f"{count} {kind}s" for kind, count in registry.known.items())
        say(f"Redis holds the registry that this gateway knows: {counts}.")
        return
    rows = [(kind, count, registry.left[kind]) for kind, count in registry.known.items()]
    show(table(("kind", "known here", "in Redis"), rows))
    for kind, difference in registry.differences.items():
        for name, ids in difference:
            if ids:
                more = " …" if ids.count > len(ids.first) else ""
                note(f"{kind}, {name} in Redis: {ids.count} ({', '.join(ids.first)}{more})")
    note(f"{registry.reason} This gateway serves what it knows and accepts no changes.")
    note("Run florin registry rewrite to put it back, or florin registry accept to keep what is in Redis.")
