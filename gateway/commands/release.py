"""florin adapter release: an operator overrules a verdict."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.adapters import Adapter, Version
from gateway.commands.client import Json, full_name, segment
from gateway.commands.output import clean, note, say
from gateway.commands.session import Session, command, confirm

app = typer.Typer()


@command(app, "release")
def release(
    session: Session,
    adapter: Adapter,
    version: Version,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask. Scripts, whom nobody can ask, must say it.")
    ] = False,
) -> None:
    """Serve a version that is quarantined or counts as failed. `adapter show` has the evidence against it.

    A quarantined one may answer like the base model from then on, and is held to what it answers after its
    next load. Without a verdict nothing changes.

    Example: florin adapter release acme/support v2 --yes
    """
    name = f"v{version}" if version.isdecimal() else version
    path = f"/admin/v1/adapters/{full_name(adapter)}/versions/{segment(name)}/release"
    confirm(f"Serve {adapter}@{name} although it was found wrong?", yes=yes, unattended=False)
    session.result(session.api.post(path), _released)


def _released(body: Json) -> None:
    full = f"{clean(body['adapter'])}@{clean(body['version'])}"
    if body["released"]:
        say(f"{full} is released: the next request loads it.")
    else:
        note(f"There was nothing against {full}.")
