"""The smallest unit of a currency, to which the amounts of statements are rounded."""

from __future__ import annotations

from sqlalchemy import Connection

from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.selling.cards import RateCardError
from gateway.units import step_of


def require_whole(connection: Connection, cents: int) -> None:
    """Raises RateCardError for an amount with decimals that the price book's currency has not."""
    currency = PriceBook(read_prices(connection)).currency
    if cents % step_of(currency):
        raise RateCardError("amount", f"{currency} has no decimals.")
