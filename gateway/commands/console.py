"""florin console"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.output import note, say, when
from gateway.commands.session import Session, command

app = typer.Typer()


@command(app, "console")
def console(
    session: Session,
    *,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser of this machine.")] = False,
) -> None:
    """Print a link that signs a browser in to the console as this key: once, within ten minutes. Whoever has
    the link has the key's rights.

    Example: florin console --open
    """
    if session.gateway.startswith("unix:"):
        raise UsageError("A browser needs an address: set FLORIN_URL to that of the gateway or its proxy.")
    body = session.api.post("/admin/v1/sign-in-links")
    link = body | {"url": session.gateway.rstrip("/") + body["url"]}
    if open_:
        typer.launch(link["url"])
    session.result(link, _people)


def _people(body: Json) -> None:
    say(body["url"])
    note(f"It works once, until {when(body['expires'])}.")
