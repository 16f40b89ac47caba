"""Reads and extends the price book in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from sqlalchemy import Connection, func, insert, select

from gateway.costs.periods import iso
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.jumps import check_price_jump
from gateway.costs.prices.price import (
    Price,
    PriceConflictError,
    PriceError,
    as_fast,
    check,
    current,
    in_force,
    rate_micros,
    speedup_millis,
)
from gateway.costs.prices.repricing import opened_at, stale
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.engine_hours import mark_dirty, pruned_before
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_hours, periods
from gateway.metering.ledger.schema import prices as table


def list_prices(ledger: Ledger) -> list[Price]:
    """The prices in force, by series and time. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return read_prices(connection)


def list_history(ledger: Ledger) -> list[Price]:
    """All prices ever added, also those that were corrected. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return read_history(connection)


def read_prices(connection: Connection) -> list[Price]:
    """`list_prices` within the caller's transaction."""
    return in_force(read_history(connection))


def currency_of(ledger: Ledger) -> str:
    """The currency of all prices; empty: there is none yet. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return connection.execute(select(table.c.currency).limit(1)).scalar() or ""


def read_history(connection: Connection) -> list[Price]:
    """`list_history` within the caller's transaction."""
    c = table.c
    query = select(table).order_by(c.gpu_type, c.region, c.purchase, c.valid_from, c.id)
    return [_price(row) for row in connection.execute(query).mappings()]


def add_price(
    ledger: Ledger,
    *,
    gpu_type: str,
    rate: str,
    currency: str,
    purchase: str,
    region: str,
    valid_from: int | None,
    valid_to: int | None,
    now: int,
    speedup: str | None = None,
    speedup_reference: str | None = None,
    speedup_source: str | None = None,
    actor: str = "",
    confirmed: bool = True,
) -> tuple[Price, bool]:
    """Add a price. Returns it, and whether it is new. Without `valid_from`, the first price of a series is
    valid from the end of the last closed month (or from the beginning), so that earlier usage has a cost too;
    a later price is valid from now on. A GPU type that the book has in another case is spelled as there.

    Open months use the new price immediately. Hours within which it begins or ends, and hours of closed
    months whose rate it changes, are marked to be rolled up again; the latter become corrections.

    `actor`: recorded in the audit log; empty to record nothing. `confirmed`: False refuses a likely slip.

    Raises PriceError, PriceConflictError, UnconfirmedJumpError, LedgerUnavailableError."""
    speed = said_speed(speedup, speedup_reference, speedup_source)
    with ledger.write() as connection:
        # Adding a price and closing a month both take a batch first, so they run one after the other.
        next_batch(connection)
        book = read_prices(connection)
        gpu_type = PriceBook(book).spelling(gpu_type)
        known = [p for p in book if p.series == (gpu_type, region, purchase)]
        opened = opened_at(connection)
        start = valid_from if valid_from is not None else now if known else opened
        if valid_to is not None and valid_to <= start:
            raise PriceError("valid_to", f"{iso(valid_to)} is not after {iso(start)}.")
        price = Price(gpu_type, rate_micros(rate), currency, purchase, region, start, valid_to, now, *speed)
        same = check(price, book) or _unchanged(price, known, explicit=valid_from is not None)
        if same is not None:
            return same, False
        _check_currency(connection, price)
        if not confirmed:
            check_price_jump(price, book)
        price = insert_price(connection, price)
        mark_stale(connection, [price], book, [*book, price], opened)
        record(connection, actor, "price.add", gpu_type, price.document(), now)
        return price, True


def price_gaps(ledger: Ledger, price: Price, now: int) -> list[tuple[int, int | None]]:
    """The times without a price for engines of a price's series: since the last closed month, and since any
    engine ran. None: without an end. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        first = connection.execute(select(func.min(engine_hours.c.hour))).scalar()
        since = max(opened_at(connection), now if first is None else first)
        return PriceBook(read_prices(connection)).gaps(price.series, min(since, now))


def _check_currency(connection: Connection, price: Price) -> None:
    """A month's corrections are posted to the next, so all months have one currency."""
    query = select(periods.c.currency).where(periods.c.currency.is_not(None)).limit(1)
    closed = connection.execute(query).scalar()
    if closed is not None and closed != price.currency:
        raise PriceConflictError(
            f"Months were closed in {closed}; a price in {price.currency} cannot be added."
        )


def insert_price(connection: Connection, price: Price) -> Price:
    """The same price with its number."""
    row = {name: value for name, value in asdict(price).items() if name != "id"}
    key = connection.execute(insert(table).values(row)).inserted_primary_key
    assert key is not None
    seal(connection, "price", *price.series)
    return replace(price, id=key[0])


def mark_stale(
    connection: Connection,
    changed: Sequence[Price],
    before: Sequence[Price],
    after: Sequence[Price],
    opened: int,
) -> None:
    """Mark what must be rolled up again after the prices `changed`, all of one GPU type, have come or gone.
    Raises PriceConflictError."""
    ends = [price.valid_to for price in changed]
    places = list(
        stale(
            connection,
            PriceBook(before),
            PriceBook(after),
            gpu_type=changed[0].gpu_type,
            start=min(price.valid_from for price in changed),
            end=None if None in ends else max(end for end in ends if end is not None),
            opened=opened,
        )
    )
    kept = pruned_before(connection)
    if any(hour < kept for hour, *_ in places):
        raise PriceConflictError(
            f"It would change what closed hours before {iso(kept)} cost, whose usage records have been "
            "removed: only what begins after that can still change."
        )
    mark_dirty(connection, places)


def said_speed(
    factor: str | None, reference: str | None, source: str | None
) -> tuple[int | None, str | None, str | None]:
    if factor is None and reference is None and source is None:
        return None, None, None
    if not (factor and reference and source):
        raise PriceError("speedup", "A speedup needs the GPU type that it is relative to, and its source.")
    return speedup_millis(factor), reference, source


def _unchanged(price: Price, known: Sequence[Price], *, explicit: bool) -> Price | None:
    """The current price, if it is the same and no time was given."""
    standing = None if explicit else current(known, price.valid_from)
    if standing is None:
        return None
    same = (standing.rate_micros, standing.valid_to) == (price.rate_micros, price.valid_to)
    return standing if same and as_fast(standing, price) else None


_COLUMNS = tuple(f.name for f in fields(Price))


def _price(row: Any) -> Price:
    return Price(**{name: row[name] for name in _COLUMNS})
