"""Exports a month as a file."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from sqlalchemy import Connection, select

from gateway.costs.allocation import Allocated, AllocationPolicy, allocate
from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.export import chargeback, infrastructure, ledger_lines, tenant_rows
from gateway.costs.export.cells import Row
from gateway.costs.export.charges import Charge, ListPrice, daily, hourly, list_price_of
from gateway.costs.export.columns import Dataset, Format, Granularity, focus
from gateway.costs.export.columns import plain as plain_columns
from gateway.costs.export.row_facts import FileFacts
from gateway.costs.export.writers import write_csv, write_parquet
from gateway.costs.periods import month
from gateway.costs.prices.book import Price, PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import periods


class TooLargeError(Exception):
    """The file would exceed its limit."""


class _Bounded(io.RawIOBase):
    """A file that accepts at most `limit` bytes."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        # Mutable: bytes left. After an overflow, further writes are dropped, because a writer flushes its
        # buffer while it is cleaned up.
        self._left = limit
        self._over = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = len(memoryview(data).cast("B"))
        if self._over:
            return size
        self._left -= size
        if self._left < 0:
            self._over = True
            raise TooLargeError
        self._file.write(data)
        return size


class MissingPriceError(Exception):
    """A cost is unknown. The message names each missing price."""


@dataclass(frozen=True, slots=True)
class Order:
    """Which file to produce."""

    month: str
    format: Format
    dataset: Dataset
    issuer: str
    parquet: bool = False
    """Write FOCUS as Parquet."""
    tenants: tuple[str, ...] = ()
    """Only rows whose tenant equals every entry; two different tenants match nothing."""
    granularity: Granularity = "hourly"
    own: bool = False
    """For the tenant itself: without what a GPU-hour costs the operator."""

    @property
    def as_parquet(self) -> bool:
        return self.parquet or self.format == "parquet"

    @property
    def file_name(self) -> str:
        kind = self.format if self.format.startswith("focus") else "lines"
        span = "" if self.granularity == "hourly" else f"-{self.granularity}"
        return f"florin-{self.month}-{self.dataset}-{kind}{span}.{'parquet' if self.as_parquet else 'csv'}"


def export(ledger: Ledger, order: Order, path: Path, most: int = sys.maxsize) -> int:
    """Fill the file `path`, which must exist: removing it cancels the export. Returns the number of rows.
    `most`: maximum bytes. Raises MissingPriceError, ParquetMissingError, LedgerUnavailableError,
    TooLargeError, and FileNotFoundError and other OSError."""
    with path.open("r+b") as file, ledger.read() as connection:
        file.truncate()
        return write(connection, order, cast("BinaryIO", _Bounded(file, most)))


def write(connection: Connection, order: Order, file: BinaryIO) -> int:
    book = PriceBook(read_prices(connection))
    if order.format.startswith("focus"):
        _check_prices(connection, book, order)
        facts = FileFacts(order.month, book.currency or "", order.issuer)
        version = order.format.removeprefix("focus-")
        columns, constants = focus(version, own=order.own), facts.constants()
        rows = _focus_rows(connection, book, order, version)
    else:
        columns, constants = plain_columns(own=order.own), {}
        rows = _plain_rows(connection, book, order)
    put = write_parquet if order.as_parquet else write_csv
    return put(file, columns, constants, rows)


def _lines(connection: Connection, book: PriceBook, order: Order, by: tuple[str, ...]) -> Iterator[CostLine]:
    return read_lines(connection, book, month(order.month), by, tenants=order.tenants)


def _focus_rows(connection: Connection, book: PriceBook, order: Order, version: str) -> Iterable[Row]:
    terms = _closed_terms(connection, order)
    listed = list_price_of(book if terms is None else _book_of(terms))

    def charges(by: tuple[str, ...]) -> Iterator[Charge]:
        found = hourly(_lines(connection, book, order, by), listed)
        return found if order.granularity == "hourly" else daily(found)

    if order.dataset == "infrastructure":
        return infrastructure.rows(charges(infrastructure.BY), version)
    rows = chain(
        chargeback.rows(charges(chargeback.BY)),
        _month_rows(connection, book, order, _allocated(connection, order, terms), listed),
    )
    return tenant_rows.rows(rows, order.granularity) if order.own else rows


def _closed_terms(connection: Connection, order: Order) -> dict[str, Any] | None:
    query = select(periods.c.document).where(periods.c.month == order.month, periods.c.state == "closed")
    document = connection.execute(query).scalar_one_or_none()
    return None if document is None else json.loads(document)["terms"]


def _book_of(terms: dict[str, Any]) -> PriceBook:
    """The price book with which a month was closed, so that its files never change."""
    held = terms["prices"]
    return PriceBook((Price(**one) for one in held), before_corrections=not any("id" in one for one in held))


def _allocated(connection: Connection, order: Order, terms: dict[str, Any] | None) -> dict[str, Allocated]:
    """Unused time allocated to tenants, by the month that it is for."""
    if terms is None:  # not decided before the month is closed
        return {}
    lines = read_lines(connection, PriceBook([]), month(order.month), ("tenant",))
    return {order.month: allocate(AllocationPolicy(terms["policy"], terms["shares"]), lines)}


def _month_rows(
    connection: Connection,
    book: PriceBook,
    order: Order,
    allocated: dict[str, Allocated],
    listed: ListPrice,
) -> Iterator[Row]:
    for name, parts in sorted(allocated.items()):
        correction = name != order.month
        yield from chargeback.allocated_rows(parts, order.tenants, name, listed, correction=correction)
    if not order.tenants:
        left = chargeback.leftover(_lines(connection, book, order, ("day",)), allocated)
        yield from chargeback.leftover_rows(left, order.month, listed)


def _plain_rows(connection: Connection, book: PriceBook, order: Order) -> Iterable[Row]:
    by: tuple[str, ...] = chargeback.BY if order.dataset == "chargeback" else infrastructure.BY
    if order.granularity == "daily":
        by = tuple("day" if name == "hour" else name for name in by)
    lines = _lines(connection, book, order, by)
    if order.dataset == "chargeback":
        lines = (line for line in lines if line.bucket == "usage")
    return ledger_lines.rows(lines, by, month=order.month, currency=book.currency)


def _check_prices(connection: Connection, book: PriceBook, order: Order) -> None:
    if missing := missing_prices(_lines(connection, book, order, ())):
        raise MissingPriceError(f"No price for {missing} during {order.month}: add it with florin price add.")


def missing_prices(lines: Iterable[CostLine]) -> str:
    """Names of the series with GPU-time but no price."""
    found = {
        (line.gpu_type, line.region, line.purchase)
        for line in lines
        if line.rate_micros is None and line.bucket != "rejected"
    }
    return ", ".join(_series(*series) for series in sorted(found))


def _series(gpu_type: str, region: str, purchase: str) -> str:
    return f"{gpu_type} ({purchase}{f', {region}' if region else ''})"
