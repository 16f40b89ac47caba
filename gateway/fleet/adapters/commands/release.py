"""florin adapter release: an operator overrides a version's serving status."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import segment
from gateway.commands.output import clean, note, say
from gateway.commands.session import Session, command, confirm
from gateway.fleet.adapters.commands.adapters import Adapter, Version
from gateway.fleet.adapters.schemas.adapters import ReleasedVersion

app = typer.Typer()


@command(app, "release")
def release(
    session: Session,
    adapter: Adapter,
    version: Version,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt. Required in scripts.")
    ] = False,
) -> None:
    """Serve a version that is quarantined or failed. `adapter show` lists the evidence against it.

    A quarantined version may then answer like the base model; its answers after the next load become its new
    reference. If the version is being served already, nothing changes.

    Example: florin adapter release acme/support v2 --yes
    """
    name = f"v{version}" if version.isdecimal() else version
    path = f"{session.adapter_path(adapter)}/versions/{segment(name)}/release"
    confirm(f"Serve {adapter}@{name} although it failed verification?", yes=yes, unattended=False)
    session.result(session.api.post(path, None, ReleasedVersion), _released)


def _released(body: ReleasedVersion) -> None:
    full = f"{clean(body.adapter)}@{clean(body.version)}"
    if body.released:
        say(f"{full} is released; the next request loads it.")
    else:
        note(f"{full} was neither quarantined nor failed; nothing to do.")
