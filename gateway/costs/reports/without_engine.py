"""Time in which no engine of a kind ran, as after scaling to zero, and what one would have cost.

It counts from the first to the last hour of the period in which one ran, for whatever reason there was none:
nobody can tell what would have run before and after. In hours with several engines, their times are taken as
one after the other. So the figures are rather too low, unless a kind was replaced by another. They are part
of no sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, func, select

from gateway.costs.periods import Period
from gateway.costs.prices.book import PriceBook
from gateway.metering.ledger.schema import engine_hours
from gateway.units import HOUR, NANO, Amount, NanoHours, amount_text, gpu_hours_text

_KIND = ("base_model", "gpu_type", "gpu_count", "region", "purchase")


def without_engine(connection: Connection, book: PriceBook, within: Period) -> list[dict[str, Any]]:
    """The kinds of engines that were missing for an hour or longer, with the GPU-hours that one would have
    run, and their price; None: it is not known for all of them."""
    table = engine_hours.c
    kind = [table[name] for name in _KIND]
    query = (
        select(*kind, table.hour, func.sum(table.provisioned_us))
        .where(table.hour >= within.start, table.hour < within.end, table.provisioned_us > 0)
        .group_by(*kind, table.hour)
        .order_by(*kind, table.hour)
    )
    missing = []
    for key, rows in groupby(connection.execute(query), key=lambda row: tuple(row[: len(_KIND)])):
        _, gpu_type, gpu_count, region, purchase = key
        nano, cost = 0, 0
        priced = True
        for hour, microseconds in _gaps([(row[-2], int(row[-1])) for row in rows]):
            part = microseconds * gpu_count * NANO // HOUR
            rate = book.rate(gpu_type, region, purchase, hour)
            nano, priced = nano + part, priced and rate is not None
            cost += part * (rate or 0)
        if nano >= gpu_count * NANO:
            missing.append(
                {
                    **dict(zip(_KIND, key, strict=True)),
                    "gpu_hours": gpu_hours_text(NanoHours(nano)),
                    "cost": amount_text(Amount(cost)) if priced else None,
                }
            )
    return missing


def _gaps(provisioned: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Hour → microseconds without an engine, between the first and the last of these."""
    times = dict(provisioned)
    for hour in range(provisioned[0][0] + HOUR, provisioned[-1][0], HOUR):
        if (left := HOUR - times.get(hour, 0)) > 0:
            yield hour, left
