"""florin exchange-rate …"""

from __future__ import annotations

import typer

from gateway.commands.client import Json
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import PriceYes, Session, command, post_price
from gateway.costs.prices.schemas import ExchangeRate, NewExchangeRate
from gateway.schemas.base import Listed

app = typer.Typer()

_PATH = "/admin/v1/exchange-rates"


@command(app, "add")
@with_options(NewExchangeRate)
def add(session: Session, *, changes: Json, yes: PriceYes = False) -> None:
    """Add a dated exchange rate, for florin cost report --currency. Rates are never edited: a new one for the
    same day replaces the earlier one, which is kept.

    Example: florin exchange-rate add --from USD --to EUR --rate 0.92 --date 2026-10-01 --source ECB
    """
    session.result(
        post_price(session, _PATH, changes, ExchangeRate, yes=yes),
        lambda rate: say(
            f"1 {clean(rate.currency)} is {clean(rate.rate)} {clean(rate.target)} from "
            f"{clean(rate.valid_from)[:10]}."
        ),
    )


@command(app, "list")
def list_(session: Session) -> None:
    """List the exchange rates. If a day has several, the last one applies.

    Example: florin exchange-rate list
    """
    session.result(session.api.get(_PATH, Listed[ExchangeRate]), _people)


def _people(rates: Listed[ExchangeRate]) -> None:
    if not rates.data:
        note("No exchange rates yet: florin exchange-rate add --from USD --to EUR …")
    rows = [(r.currency, r.target, r.rate, r.valid_from[:10], r.source, r.reason) for r in rates.data]
    show(table(("from", "to", "rate", "day", "source", "replaces because"), rows, right=("rate",)))
