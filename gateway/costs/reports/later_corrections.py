"""What later months have corrected of a closed one. Its own figures never change, so its report says where
the difference is."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from gateway.costs.cost_lines import read_postings
from gateway.costs.periods import iso, month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.reports.figures import Figures
from gateway.costs.reports.parts import months_with_postings


def later_corrections(connection: Connection, month: str) -> list[dict[str, Any]]:
    """By the month to which they are posted: changes of requests, tokens, GPU time and cost."""
    book = PriceBook(read_prices(connection))
    corrections = []
    for name in months_with_postings(connection, iso(month_of(month).end)[:7], "9999-12"):
        sums = Figures()
        for line in read_postings(connection, book, month, (), first=name, last=name):
            sums.add(line)
        if not sums.empty:
            corrections.append({"month": name, **sums.document()})
    return corrections
