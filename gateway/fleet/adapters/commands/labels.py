"""florin adapter update: an adapter's cost centre."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import UsageError
from gateway.commands.output import clean, say
from gateway.commands.session import Session, command
from gateway.fleet.adapters.commands.adapters import Adapter
from gateway.fleet.adapters.schemas import adapters as schemas
from gateway.schemas.typed_text import NONE

app = typer.Typer()


@command(app, "update")
def update(
    session: Session,
    adapter: Adapter,
    *,
    cost_centre: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="Cost centre of its usage in `florin cost report --by cost_centre`; `none` to remove it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Change an adapter's cost centre. It applies from the next request on, to requests of the adapter's own
    tenant with a key that has no cost centre.

    Example: florin adapter update acme/support --cost-centre customer-care
    """
    if cost_centre is None:
        raise UsageError("Nothing to change: give --cost-centre LABEL, or --cost-centre none.")
    path = f"{session.adapter_path(adapter)}/cost-centre"
    label = None if cost_centre == NONE else cost_centre
    session.result(session.api.put(path, {"cost_centre": label}, schemas.Adapter), _labelled)


def _labelled(body: schemas.Adapter) -> None:
    label = body.cost_centre
    say(f"{clean(body.adapter)} has {f'the cost centre {clean(label)}' if label else 'no cost centre'}.")
