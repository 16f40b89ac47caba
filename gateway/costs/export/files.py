"""Exports a month as a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Connection, select

from gateway.costs.allocation import Allocated
from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.export import chargeback, commitment_rows, infrastructure
from gateway.costs.export.cells import Fixed, Row
from gateway.costs.export.charges import Charge, ListPrice, daily, hourly, list_price_of
from gateway.costs.export.columns import Dataset, Format, Granularity, focus
from gateway.costs.export.columns import plain as plain_columns
from gateway.costs.export.committed import committed, covered
from gateway.costs.export.customer import BY as CUSTOMER_BY
from gateway.costs.export.customer import Customer, columns_for, unlisted
from gateway.costs.export.foreign import FOREIGN
from gateway.costs.export.row_facts import FileFacts
from gateway.costs.export.writers import bounded, write_csv, write_parquet
from gateway.costs.periods import month_of
from gateway.costs.policies.terms import allocate_month, terms_of
from gateway.costs.prices.book import Price, PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import periods
from gateway.metering.ledger.sealed_months import check_months


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
    customer: str = ""
    """The tenant whose key asks: its file shows what it is charged, no GPU-hours and no prices of GPUs."""
    now: int = 0
    """For what commitments are now."""

    @property
    def as_parquet(self) -> bool:
        return self.parquet or self.format == "parquet"

    @property
    def file_name(self) -> str:
        kind = "lines" if self.format in {"csv", "parquet"} else self.format
        span = "" if self.granularity == "hourly" else f"-{self.granularity}"
        return f"florin-{self.month}-{self.dataset}-{kind}{span}.{'parquet' if self.as_parquet else 'csv'}"


def export(ledger: Ledger, order: Order, path: Path, most: int = sys.maxsize) -> int:
    """Fill the file `path`, which must exist: removing it cancels the export. Returns the number of rows.
    `most`: maximum bytes. Raises MissingPriceError, ParquetMissingError, LedgerUnavailableError,
    TooLargeError, and FileNotFoundError and other OSError."""
    with path.open("r+b") as file, ledger.read() as connection:
        file.truncate()
        return write(connection, order, bounded(file, most))


def write(connection: Connection, order: Order, file: BinaryIO) -> int:
    book = PriceBook(read_prices(connection))
    if order.customer:
        return _write_for_customer(connection, book, order, file)
    foreign = FOREIGN.get(order.format)
    if order.format.startswith("focus") or foreign is not None:
        _check_prices(connection, book, order)
        facts = FileFacts(order.month, book.currency or "", order.issuer)
        version = "1.2" if foreign else order.format.removeprefix("focus-")
        columns, constants = focus(version), facts.constants()
        rows = _focus_rows(connection, book, order, version)
        if foreign is not None:
            columns, rows, constants = foreign.columns, foreign.rows(rows, constants), {}
    else:
        columns, constants = plain_columns(), {}
        rows = _plain_rows(connection, book, order)
    put = write_parquet if order.as_parquet else write_csv
    return put(file, columns, constants, rows)


def _write_for_customer(connection: Connection, book: PriceBook, order: Order, file: BinaryIO) -> int:
    customer = Customer.read(connection, order.customer, order.month, order.granularity)
    put = write_parquet if order.as_parquet else write_csv
    if not order.format.startswith("focus"):
        by = _by(order)
        used = (line for line in _lines(connection, book, order, by) if line.bucket == "usage")
        plain = (
            customer.plain(line, row)
            for line in used
            for row in _ledger_rows([line], by, order.month, book.currency)
        )
        return put(file, columns_for(plain_columns()), {}, plain)
    by_hour = _lines(connection, book, order, ("hour",))
    if missing := missing_prices(line for line in by_hour if customer.card_of(line) is None):
        raise MissingPriceError(no_price(missing, order.month))
    lines = map(customer.charged, _lines(connection, book, order, CUSTOMER_BY))
    rows = customer.focus(_charges(lines, unlisted, order))
    if all(name == order.customer for name in order.tenants):
        allocated = customer.at_cost(_allocated(connection, book, order))
        shares = map(customer.hidden, _allocated_rows(allocated, order, unlisted))
        rows = chain(rows, shares, customer.month_rows(connection, book))
    facts = FileFacts(order.month, book.currency or customer.currency, order.issuer)
    columns = columns_for(focus(order.format.removeprefix("focus-")))
    return put(file, columns, facts.constants(), customer.invoiced(connection, rows))


def _lines(connection: Connection, book: PriceBook, order: Order, by: tuple[str, ...]) -> Iterator[CostLine]:
    return read_lines(connection, book, month_of(order.month), by, tenants=order.tenants)


def _focus_rows(connection: Connection, book: PriceBook, order: Order, version: str) -> Iterable[Row]:
    listed = list_price_of(_closed_book(connection, order) or book)
    everybody = replace(order, tenants=())

    def all_lines() -> Iterator[CostLine]:
        return _lines(connection, book, everybody, infrastructure.BY)

    plan = committed(connection, order.month, all_lines)
    if order.dataset == "infrastructure":
        if plan is None:
            charges = hourly(_lines(connection, book, order, infrastructure.BY), listed)
            return infrastructure.rows(_in_spans(charges, order), version)
        # What a commitment covers depends on the engines of all tenants.
        divided = covered(hourly(all_lines(), listed), plan.uses)
        mine = (c for c in divided if all(c.line.keys[infrastructure.TENANT] == t for t in order.tenants))
        rows = infrastructure.rows(_in_spans(mine, order), version)
        return rows if order.tenants else chain(rows, commitment_rows.rows(plan, listed, order.granularity))
    allocated = _allocated(connection, book, order)
    charge_rows = chain(
        chargeback.rows(_charges(_lines(connection, book, order, chargeback.BY), listed, order)),
        _allocated_rows(allocated, order, listed),
        _leftover_rows(connection, book, order, allocated, listed),
    )
    if plan is None or order.tenants:
        return charge_rows
    divided = covered(hourly(all_lines(), listed), plan.uses)
    return chain(charge_rows, commitment_rows.beyond_the_books(plan, divided))


def _charges(lines: Iterable[CostLine], listed: ListPrice, order: Order) -> Iterable[Charge]:
    return _in_spans(hourly(lines, listed), order)


def _in_spans(charges: Iterable[Charge], order: Order) -> Iterable[Charge]:
    return charges if order.granularity == "hourly" else daily(charges)


def _closed_book(connection: Connection, order: Order) -> PriceBook | None:
    """The price book with which a month was closed, so that its files never change. None: it is open.
    Raises MonthChangedError."""
    check_months(connection)
    query = select(periods.c.document).where(periods.c.month == order.month, periods.c.state == "closed")
    document = connection.execute(query).scalar_one_or_none()
    if document is None:
        return None
    prices = json.loads(document)["terms"]["prices"]
    return PriceBook(Price(**price) for price in prices)


def _allocated(connection: Connection, book: PriceBook, order: Order) -> dict[str, Allocated]:
    """Unused time allocated to tenants, by the month that it is for. By the month's terms: as it was closed,
    or by the standing policy."""
    lines = read_lines(connection, book, month_of(order.month), ("tenant",))
    allocation = allocate_month(connection, book, order.month, terms_of(connection, order.month), lines)
    return {order.month: allocation.own, **allocation.corrections}


def _allocated_rows(allocated: Mapping[str, Allocated], order: Order, listed: ListPrice) -> Iterator[Row]:
    for name, parts in sorted(allocated.items()):
        borne = (key for key in parts if all(key[0] == tenant for tenant in order.tenants))
        if missing := sorted({key[1:4] for key in borne if key[4] is None}):
            raise MissingPriceError(
                no_price(", ".join(series_text(*series) for series in missing), order.month)
            )
        correction = name != order.month
        yield from chargeback.allocated_rows(parts, order.tenants, name, listed, correction=correction)


def _leftover_rows(
    connection: Connection,
    book: PriceBook,
    order: Order,
    allocated: Mapping[str, Allocated],
    listed: ListPrice,
) -> Iterator[Row]:
    """What nobody is charged for: in files of all tenants."""
    if not order.tenants:
        left = chargeback.leftover(_lines(connection, book, order, ("day",)), allocated)
        yield from chargeback.leftover_rows(left, order.month, listed)


def _plain_rows(connection: Connection, book: PriceBook, order: Order) -> Iterable[Row]:
    by = _by(order)
    lines = _lines(connection, book, order, by)
    if order.dataset == "chargeback":
        lines = (line for line in lines if line.bucket == "usage")
    return _ledger_rows(lines, by, order.month, book.currency)


def _ledger_rows(
    lines: Iterable[CostLine], by: Sequence[str], month: str, currency: str | None
) -> Iterator[Row]:
    """The data behind the other files, for those who build their own: rows from lines grouped by `by`. Cost
    and rate are null if a price is missing."""
    for line in lines:
        rate, cost = line.rate_micros, line.cost
        keys: Row = {name: value or None for name, value in zip(by, line.keys, strict=True)}
        if "day" in keys:
            keys["hour"] = f"{keys.pop('day')}T00:00:00Z"
        yield {
            **keys,
            "month": month,
            "bucket": line.bucket,
            "correction": line.correction,
            "calibration": line.calibration,
            "task": line.task or None,
            "requests": line.requests,
            "prompt_tokens": line.prompt_tokens,
            "cached_tokens": line.cached_tokens,
            "completion_tokens": line.completion_tokens,
            "reasoning_tokens": line.reasoning_tokens,
            "gpu_hours": Fixed(line.nano_gpu_hours, 9),
            "rate_per_gpu_hour": None if rate is None else Fixed(rate, 6),
            "cost": None if cost is None else Fixed(cost, 15),
            "currency": None if cost is None else currency,
        }


def _by(order: Order) -> tuple[str, ...]:
    """Dimensions of plain lines."""
    by: tuple[str, ...] = chargeback.BY if order.dataset == "chargeback" else infrastructure.BY
    return by if order.granularity == "hourly" else tuple("day" if name == "hour" else name for name in by)


def _check_prices(connection: Connection, book: PriceBook, order: Order) -> None:
    if missing := missing_prices(_lines(connection, book, order, ())):
        raise MissingPriceError(no_price(missing, order.month))


def no_price(series: str, month: str) -> str:
    return f"No price for {series} during {month}: add it with florin price add."


def missing_prices(lines: Iterable[CostLine]) -> str:
    """Names of the series with GPU time but no price."""
    unpriced = {line.series for line in lines if line.rate_micros is None and line.bucket != "rejected"}
    return ", ".join(series_text(*series) for series in sorted(unpriced))


def series_text(gpu_type: str, region: str, purchase: str) -> str:
    return f"{gpu_type} ({purchase}{f', {region}' if region else ''})"
