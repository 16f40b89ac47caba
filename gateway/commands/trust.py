"""florin engine trust: an operator says that an engine's base model is what it should be."""

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
        bool, typer.Option("--yes", "-y", help="Do not ask. Scripts, whom nobody can ask, must say it.")
    ] = False,
) -> None:
    """Take what an engine's base model answers now for right, on every engine of its fleet.

    For after a change of the base model, its quantization or vLLM, when loads are refused because engines are
    suspect. The fleet's versions are held to what they answer after their next loads; quarantines stay.

    Example: florin engine trust a1 --yes
    """
    confirm(f"Hold the whole fleet of {name} to what it answers now?", yes=yes, unattended=False)
    session.result(session.api.post(f"/admin/v1/engines/{segment(name)}/trust"), _trusted)


def _trusted(body: Json) -> None:
    say(
        f"{clean(body['base'])} is what {clean(body['engine'])} answers; "
        f"{body['fingerprints_forgotten']} versions are looked at anew when they are loaded next."
    )
