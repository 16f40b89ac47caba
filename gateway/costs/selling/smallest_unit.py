"""The smallest unit of a currency, to which the amounts of statements are rounded."""

from __future__ import annotations

from sqlalchemy import Connection

from gateway.costs.periods import month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.selling.cards import RateCardError
from gateway.metering.ledger.engine_hours import earlier_rules_before
from gateway.units import step_of


def statement_step(connection: Connection, month: str, currency: str | None) -> int:
    """Hundredths in the smallest unit of the currency; 1 for months that a release closed which rounded every
    currency to hundredths."""
    earlier = month_of(month).start < earlier_rules_before(connection)
    return 1 if earlier else step_of(currency)


def require_whole(connection: Connection, cents: int) -> None:
    """Raises RateCardError for an amount with decimals that the price book's currency has not."""
    currency = PriceBook(read_prices(connection)).currency
    if cents % step_of(currency):
        raise RateCardError("amount", f"{currency} has no decimals.")
