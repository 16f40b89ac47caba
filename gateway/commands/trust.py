"""florin engine trust: accept an engine's base model answers as the reference."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json, segment
from gateway.commands.engines import Name
from gateway.commands.output import clean, say
from gateway.commands.session import Session, command, confirm

app = typer.Typer()


@command(app, "trust")
def trust(
    session: Session,
    name: Name,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt. Required in scripts.")
    ] = False,
) -> None:
    """Accept an engine's current base model answers as the reference for its fleet.

    Use it after changing the base model, its quantization or vLLM, when loads are refused because engines are
    suspect. Versions of the fleet get new references at their next loads; quarantines stay.

    Example: florin engine trust a1 --yes
    """
    confirm(f"Use the answers of {name} as the reference for its whole fleet?", yes=yes, unattended=False)
    session.result(session.api.post(f"/admin/v1/engines/{segment(name)}/trust"), _trusted)


def _trusted(body: Json) -> None:
    say(
        f"{clean(body['engine'])} is now the reference for {clean(body['base'])}; "
        f"{body['fingerprints_forgotten']} versions get new references at their next loads."
    )
