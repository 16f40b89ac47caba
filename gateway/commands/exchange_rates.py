"""florin exchange-rate …"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import PriceYes, Session, command, post_price

app = typer.Typer()

_PATH = "/admin/v1/exchange-rates"


@command(app, "add")
def add(
    session: Session,
    *,
    currency: Annotated[str, typer.Option("--from", help="One unit of this currency, for example USD…")],
    target: Annotated[str, typer.Option("--to", help="…is worth --rate of this one, for example EUR.")],
    rate: Annotated[str, typer.Option(help="A decimal with at most 9 places, for example 0.92.")],
    valid_from: Annotated[
        str, typer.Option("--date", help="First day, UTC. Valid until the next rate of the same pair.")
    ],
    source: Annotated[str, typer.Option(help="Who published it.")],
    reason: Annotated[
        str | None,
        typer.Option(help="Why it replaces the rate that this day already has.", show_default=False),
    ] = None,
    yes: PriceYes = False,
) -> None:
    """Add a dated exchange rate, for florin cost report --currency. Rates are never edited: a new one for the
    same day replaces the earlier one, which is kept.

    Example: florin exchange-rate add --from USD --to EUR --rate 0.92 --date 2026-10-01 --source ECB
    """
    body: Json = {
        "currency": currency,
        "target": target,
        "rate": rate,
        "valid_from": valid_from,
        "source": source,
        **({} if reason is None else {"reason": reason}),
    }
    session.result(
        post_price(session, _PATH, body, yes=yes),
        lambda b: say(
            f"1 {clean(b['currency'])} is {clean(b['rate'])} {clean(b['target'])} from "
            f"{clean(b['valid_from'])[:10]}."
        ),
    )


@command(app, "list")
def list_(session: Session) -> None:
    """List the exchange rates. If a day has several, the last one applies.

    Example: florin exchange-rate list
    """

    def people(body: Json) -> None:
        if not body["data"]:
            note("No exchange rates yet: florin exchange-rate add --from USD --to EUR …")
        rows = [
            [r["currency"], r["target"], r["rate"], r["valid_from"][:10], r["source"], r["reason"]]
            for r in body["data"]
        ]
        show(table(("from", "to", "rate", "day", "source", "replaces because"), rows, right=("rate",)))

    session.result(session.api.get(_PATH), people)
