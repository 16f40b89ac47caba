"""Reads and extends the price book in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Connection, insert, select

from gateway.costs.periods import iso
from gateway.costs.prices.book import (
    Price,
    PriceBook,
    PriceConflictError,
    PriceError,
    _as_fast,
    check,
    rate_micros,
    speedup_millis,
)
from gateway.costs.prices.repricing import opened_at, stale
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.ledger import Ledger, mark_dirty, next_batch, pruned_before
from gateway.metering.ledger.schema import prices as table


def list_prices(ledger: Ledger) -> list[Price]:
    """All prices, by series and time. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return read_prices(connection)


def read_prices(connection: Connection) -> list[Price]:
    """`list_prices` within the caller's transaction."""
    query = select(table).order_by(table.c.gpu_type, table.c.region, table.c.purchase, table.c.valid_from)
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
) -> tuple[Price, bool]:
    """Add a price. Returns it, and whether it is new. Without `valid_from`, the first price of a series is
    valid from the end of the last closed month (or from the beginning), so that earlier usage has a cost too;
    a later price is valid from now on.

    Open months use the new price immediately. Hours within which it begins or ends, and hours of closed
    months whose rate it changes, are marked to be rolled up again; the latter become corrections.

    `actor`: recorded in the audit log; empty to record nothing.

    Raises PriceError, PriceConflictError, LedgerUnavailableError."""
    said = _speedup(speedup, speedup_reference, speedup_source)
    with ledger.write() as connection:
        # Adding a price and closing a month both take a batch first, so they run one after the other.
        next_batch(connection)
        book = read_prices(connection)
        known = [p for p in book if p.series == (gpu_type, region, purchase)]
        opened = opened_at(connection)
        start = valid_from if valid_from is not None else now if known else opened
        if valid_to is not None and valid_to <= start:
            raise PriceError("valid_to", f"{iso(valid_to)} is not after {iso(start)}.")
        price = Price(gpu_type, rate_micros(rate), currency, purchase, region, start, valid_to, now, *said)
        same = check(price, book) or _unchanged(price, known, explicit=valid_from is not None)
        if same is not None:
            return same, False
        connection.execute(insert(table), [asdict(price)])
        _mark_stale(connection, price, book, opened)
        record(connection, actor, "price.add", gpu_type, price.document(), now)
        return price, True


def _mark_stale(connection: Connection, price: Price, book: Sequence[Price], opened: int) -> None:
    old, new = PriceBook(book), PriceBook([*book, price])
    end = next(rate.end for rate in new.rates(*price.series) if rate.start == price.valid_from)
    found = list(
        stale(connection, old, new, gpu_type=price.gpu_type, start=price.valid_from, end=end, opened=opened)
    )
    kept = pruned_before(connection)
    if any(hour < kept for hour, *_ in found):
        raise PriceConflictError(
            f"It would change what closed hours before {iso(kept)} cost, whose usage records have been "
            "removed: let it begin no earlier than that."
        )
    mark_dirty(connection, found)


def _speedup(
    factor: str | None, reference: str | None, source: str | None
) -> tuple[int | None, str | None, str | None]:
    if factor is None and reference is None and source is None:
        return None, None, None
    if not (factor and reference and source):
        raise PriceError("speedup", "A speedup needs the GPU type that it is relative to, and its source.")
    return speedup_millis(factor), reference, source


def _unchanged(price: Price, known: Sequence[Price], *, explicit: bool) -> Price | None:
    """The current price, if it is the same and no time was given."""
    last = max(known, key=lambda p: p.valid_from, default=None)
    if explicit or last is None or last.valid_from > price.valid_from:
        return None
    same = (last.rate_micros, last.valid_to) == (price.rate_micros, price.valid_to) and _as_fast(last, price)
    return last if same else None


_COLUMNS = tuple(f.name for f in fields(Price))


def _price(row: Any) -> Price:
    return Price(**{name: row[name] for name in _COLUMNS})
