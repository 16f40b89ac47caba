"""florin tenant …"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json, segment
from gateway.commands.keys import key_table
from gateway.commands.output import facts, note, show, table
from gateway.commands.session import Session, command
from gateway.commands.times import when

app = typer.Typer()


@command(app, "add")
def add(
    session: Session,
    name: Annotated[str, typer.Argument(help="1 to 63 of a-z, 0-9, - and _.")],
    *,
    base_access: Annotated[
        bool | None, typer.Option("--base-access/--no-base-access", help="Allow calls to the base model.")
    ] = None,
) -> None:
    """Add a tenant. Repeating the command changes nothing.

    Example: florin tenant add acme
    """
    body = session.api.post("/admin/v1/tenants", {"name": name, "base_access": base_access})
    session.result(body, _people)


@command(app, "list")
def list_(session: Session) -> None:
    """List tenants.

    Example: florin tenant list
    """
    session.result(session.api.get("/admin/v1/tenants"), _list)


@command(app, "show")
def show_(session: Session, name: Annotated[str, typer.Argument(help="The tenant's name.")]) -> None:
    """Show one tenant with its adapters and keys (never the keys themselves).

    Example: florin tenant show acme
    """

    def people(body: Json) -> None:
        _people(body)
        show(facts([("adapters", body["adapters"])]))
        show(key_table(body["keys"]))

    session.result(session.api.get(f"/admin/v1/tenants/{segment(name)}"), people)


def _people(body: Json) -> None:
    show(
        facts(
            [
                ("tenant", body["name"]),
                ("base access", body["base_access"]),
                ("created", when(body["created"])),
            ]
        )
    )


def _list(body: Json) -> None:
    if not body["data"]:
        note("No tenants yet: florin tenant add NAME")
    rows = [(t["name"], t["base_access"], when(t["created"])) for t in body["data"]]
    show(table(("tenant", "base access", "created"), rows))
