"""Checks the pricing of a closed month: the price book is unchanged, each row has its rate, and costs equal
GPU-hours times rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, func, select

from gateway.costs.periods import iso, month_of
from gateway.costs.prices.book import Price, PriceBook
from gateway.costs.prices.price_store import read_history, read_prices
from gateway.metering.ledger.schema import engine_hours, rollups
from gateway.units import FREE, Amount, Micros, NanoHours, micros_text

_SERIES = ("gpu_type", "region", "purchase")


def changed_prices(connection: Connection, snapshot: Sequence[Mapping[str, Any]]) -> list[str]:
    """Prices of the snapshot that have changed or are missing. One that was corrected since is still
    there."""
    history = read_history(connection)
    by_number = {price.id: price for price in history}
    first = {(*p.series, p.valid_from): p for p in reversed(history) if p.supersedes is None}
    wrong = []
    for document in snapshot:
        price = Price(**document)
        if price.id:
            now = by_number.get(price.id)
        else:  # closed before prices had numbers
            now = first.get((*price.series, price.valid_from))
            now = None if now is None else replace(now, id=0)
        if now != price:
            was = micros_text(price.rate_micros)
            if now is None:
                change = f"was {was}, now missing"
            elif now.rate_micros != price.rate_micros:
                change = f"was {was}, now {micros_text(now.rate_micros)}"
            else:
                change = "has a different currency or validity"
            wrong.append(f"{' '.join(filter(None, price.series))} from {iso(price.valid_from)} {change}")
    return wrong


def wrong_rates(connection: Connection, month: str, snapshot: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows of a month whose rate differs from the snapshot. Corrections may reverse earlier rows at their
    rate."""
    book = PriceBook(Price(**document) for document in snapshot)
    table = rollups.c
    columns = [*(table[name] for name in _SERIES), table.piece, table.rate_micros, table.correction]
    wrong = []
    for *series, piece, rate, correction in connection.execute(
        select(*columns).where(table.posted == month).distinct().order_by(*columns)
    ).all():
        gpu_type, region, purchase = series
        right = book.rate(gpu_type, region, purchase, piece) or FREE
        if rate == right or (correction and _stood(connection, month, series, piece, rate)):
            continue
        stored = "none" if rate is None else micros_text(rate)
        wrong.append(
            f"{' '.join(filter(None, series))} at {iso(piece)}: rate {stored}, price book "
            f"{micros_text(right)}"
        )
    return wrong


def _stood(connection: Connection, month: str, series: Sequence[str], piece: int, rate: int) -> bool:
    """Whether an earlier month has a row with that rate."""
    table = rollups.c
    fits = [table[name] == value for name, value in zip(_SERIES, series, strict=True)]
    query = select(table.id).where(
        table.posted < month, table.piece == piece, table.rate_micros == rate, *fits
    )
    return connection.execute(query.limit(1)).first() is not None


def cost_check(connection: Connection, month: str) -> tuple[list[str], NanoHours, Amount]:
    """Problems, and the GPU time and cost of the month's hours over all postings.
    The remaining amount of each piece of an engine-hour must have a single rate, so that parts times rates
    equal the whole times the rate."""
    book = PriceBook(read_prices(connection))
    wrong: list[str] = []
    nano = cost = 0
    for (hour, engine), pieces in groupby(_pieces(connection, month, book), key=lambda p: (p[0], p[1])):
        for piece, rates in groupby(pieces, key=lambda p: p[2]):
            amounts: defaultdict[Micros, int] = defaultdict(int)  # an unfrozen correction has the same rate
            for _, _, _, rate, amount in rates:
                amounts[rate] += amount
            left = [rate for rate, amount in amounts.items() if amount]
            if len(left) > 1:
                shown = ", ".join(map(micros_text, left))
                wrong.append(f"{engine} at {iso(piece)} ({iso(hour)}): more than one rate remains ({shown})")
            nano += sum(amounts.values())
            cost += sum(rate * amount for rate, amount in amounts.items())
    period = month_of(month)
    query = select(func.coalesce(func.sum(engine_hours.c.nano_gpu_hours), 0)).where(
        engine_hours.c.hour >= period.start, engine_hours.c.hour < period.end
    )
    provisioned = int(connection.execute(query).scalar_one())
    if nano != provisioned:
        wrong.insert(0, f"{nano:,} nano-GPU-hours are accounted for, {provisioned:,} were provisioned")
    return wrong, NanoHours(nano), Amount(cost)


def _pieces(
    connection: Connection, month: str, book: PriceBook
) -> Iterator[tuple[int, str, int, Micros, int]]:
    """(hour, engine with its GPUs, piece, rate, nano-GPU-hours), by the first three."""
    table = rollups.c
    period = month_of(month)
    key = [
        table.hour,
        table.engine,
        table.gpu_type,
        table.gpu_count,
        table.piece,
        table.region,
        table.purchase,
    ]
    query = (
        select(*key, table.rate_micros, func.sum(table.nano_gpu_hours))
        .where(table.posted >= month, table.hour >= period.start, table.hour < period.end)
        .group_by(*key, table.rate_micros)
        .order_by(*key)
    )
    for row in connection.execute(query):
        hour, engine, gpu_type, gpu_count, piece, region, purchase, frozen, amount = tuple(row)
        rate = frozen if frozen is not None else book.rate(gpu_type, region, purchase, piece) or FREE
        yield hour, f"{engine} ({gpu_count} {gpu_type})", piece, rate, int(amount)
