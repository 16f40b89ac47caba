"""florin credit …"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json
from gateway.commands.options import with_options
from gateway.commands.output import clean, facts, note, say, show, table
from gateway.commands.session import Session, command
from gateway.costs.credits.schemas import Balance, EndedGrant, Grant, NewGrant
from gateway.schemas.base import Listed

app = typer.Typer()

_PATH = "/finance/v1/credits"


@command(app, "grant")
@with_options(NewGrant)
def grant(session: Session, *, changes: Json) -> None:
    """Grant prepaid credits to a tenant. Its statements draw them before anything is due.

    Example: florin credit grant --tenant acme --amount 500 --reason "Payment 4711" --reference pay_4711
    """
    session.result(session.api.post(_PATH, changes, Grant), _described)


def _described(grant: Grant) -> None:
    until = f" until {clean(grant.ends)}" if grant.ends else ""
    say(
        f"Grant {grant.id} of {clean(grant.tenant)}: {clean(grant.amount)} from {clean(grant.begins)}{until}."
    )


@command(app, "list")
def list_(
    session: Session,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.", show_default=False)] = None,
) -> None:
    """List grants, also used and expired ones.

    Example: florin credit list --tenant acme
    """
    session.result(session.api.get(_PATH, Listed[Grant], {"tenant": tenant}), _listed)


def _listed(grants: Listed[Grant]) -> None:
    if not grants.data:
        note("No prepaid credits yet: florin credit grant")
        return
    columns = ("id", "tenant", "amount", "drawn", "from", "until", "priority", "reference", "reason")
    rows = [
        (str(g.id), g.tenant, g.amount, g.drawn, g.begins, g.ends, str(g.priority), g.reference, g.reason)
        for g in grants.data
    ]
    show(table(columns, rows, right=("amount", "drawn", "priority")))


@command(app, "balance")
def balance(
    session: Session,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose credits.")],
) -> None:
    """Show what is left of a tenant's credits, as this month's statement would show it now.

    Example: florin credit balance acme
    """
    session.result(session.api.get(f"{_PATH}/balance/{tenant}", Balance), _balance)


def _balance(balance: Balance) -> None:
    names = ("opening", "granted", "drawn", "expired", "closing")
    rows = [(name, f"{getattr(balance, name)} {balance.currency or ''}".strip()) for name in names]
    show(facts((("month", balance.month), *rows)))


@command(app, "end")
@with_options(EndedGrant)
def end(
    session: Session,
    number: Annotated[int, typer.Argument(metavar="ID", help="As `florin credit list` shows it.", min=1)],
    *,
    changes: Json,
) -> None:
    """Set the last month of a grant: what is left then expires. Closed months keep what they drew.

    Example: florin credit end 3 --until 2026-12
    """
    session.result(session.api.post(f"{_PATH}/{number}/end", changes, Grant), _described)
