"""florin console"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import UsageError
from gateway.commands.output import note, say, when
from gateway.commands.session import Session, command
from gateway.tenants.people.schemas import SignInLink

app = typer.Typer()


@command(app, "console")
def console(
    session: Session,
    *,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser of this machine.")] = False,
) -> None:
    """Print a link that signs a browser in to the console with this key.

    The link works once, within ten minutes. Anyone who opens it has the key's rights until the session ends.
    With --json, `url` is a path of the gateway.

    Example: florin console --open
    """
    if session.gateway.startswith("unix:"):
        raise UsageError("A browser needs an address: set FLORIN_URL to that of the gateway or its proxy.")
    link = session.api.post("/admin/v1/sign-in-links", None, SignInLink)
    url = session.gateway.rstrip("/") + link.url
    if open_:
        typer.launch(url)
    session.result(link, lambda link: _people(url, link))


def _people(url: str, link: SignInLink) -> None:
    say(url)
    note(f"It works once, until {when(link.expires)}.")
