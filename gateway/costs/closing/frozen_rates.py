"""Frozen rates: the rates that are written into a month's rows when it is closed."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, func, select, update

from gateway.costs.prices.book import PriceBook, Series
from gateway.costs.prices.price_store import read_prices
from gateway.costs.rollups.daily_sums import mark_unsummed_month
from gateway.costs.rollups.parts import DIMENSIONS
from gateway.metering.ledger.schema import calibrations, rollup_parts, rollups
from gateway.units import HOUR

_CALIBRATION = tuple(str(c.name) for c in calibrations.columns if c.name != "document")


def freeze(connection: Connection, month: str) -> tuple[str | None, list[Series], list[dict[str, Any]]]:
    """In a write transaction: write the rates into a month's rows. Returns the currency, the series that lack
    a price for some time in which they ran, and the price book. A missing rate is frozen as 0 without a
    currency, so that a price added later becomes a correction and changes nothing here."""
    prices = read_prices(connection)
    book = PriceBook(prices)
    table = rollups.c
    series = (table.gpu_type, table.region, table.purchase)
    spans = connection.execute(
        select(*series, func.min(table.piece), func.max(table.piece))
        .where(*_unfrozen(rollups, month))
        .group_by(*series)
    ).all()
    missing: set[Series] = set()
    for gpu_type, region, purchase, first, last in spans:
        names = (gpu_type, region, purchase)
        edges = [first, *book.changes(gpu_type, region, purchase, first, last + 1), last + 1]
        for start, end in pairwise(edges):
            rate = book.rate(gpu_type, region, purchase, start)
            if rate is None and _uses_time(connection, _within(rollups, month, names, start, end)):
                missing.add((gpu_type, region, purchase))
            currency = None if rate is None else book.currency
            for of_table in (rollups, rollup_parts):
                here = _within(of_table, month, names, start, end)
                connection.execute(
                    update(of_table).where(here).values(rate_micros=rate or 0, currency=currency)
                )
    mark_unsummed_month(connection, month)
    return book.currency, sorted(missing), [asdict(price) for price in prices]


def _unfrozen(table: Table, month: str) -> list[ColumnElement[bool]]:
    return [table.c.posted == month, table.c.rate_micros.is_(None)]


def _within(table: Table, month: str, series: Series, start: int, end: int) -> ColumnElement[bool]:
    """Unfrozen rows of a series whose pieces begin in [start, end)."""
    names = ("gpu_type", "region", "purchase")
    at_index = [table.c.dimension.in_(DIMENSIONS)] if table is rollup_parts else []
    return and_(
        *at_index,
        *_unfrozen(table, month),
        *(table.c[name] == value for name, value in zip(names, series, strict=True)),
        table.c.hour > start - HOUR,  # uses the index; pieces begin within their hour
        table.c.piece >= start,
        table.c.piece < end,
    )


def _uses_time(connection: Connection, where: Any) -> bool:
    query = select(rollups.c.id).where(where, rollups.c.nano_gpu_hours != 0).limit(1)
    return connection.execute(query).first() is not None


def calibrations_of(connection: Connection, month: str) -> list[dict[str, Any]]:
    """The calibrations that the rows were computed with."""
    used = select(rollups.c.calibration).where(rollups.c.posted == month).distinct()
    query = select(*(calibrations.c[name] for name in _CALIBRATION)).where(calibrations.c.id.in_(used))
    # Our own names, because the keys of a row mapping are not plain str and have no canonical JSON.
    rows = connection.execute(query.order_by(calibrations.c.id))
    return [dict(zip(_CALIBRATION, row, strict=True)) for row in rows]
