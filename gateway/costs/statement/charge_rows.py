"""What customers are charged in a month, as one table: a row for each line of each statement, with its SKU,
quantity and unit price where a rate card sets them, and a row for the tax on an invoice.

Costs are in the other exports. A tenant's rows sum to its statement, and with the tax to its total.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from gateway.costs.closing.documents import StatementLine, TenantStatement
from gateway.costs.closing.preview import MonthSettlement, settlement_now
from gateway.costs.export.cells import Fixed, Row
from gateway.costs.export.columns import Column
from gateway.costs.export.files import MissingPriceError, Order, no_price, series_text
from gateway.costs.export.writers import bounded, write_csv, write_parquet
from gateway.costs.selling.invoices import Invoice, in_force, read_invoices
from gateway.metering.ledger.ledger import Ledger
from gateway.units import units_of

PRICED_COLUMNS = (
    Column("sku", "text", nullable=True),
    Column("price", "text", nullable=True),
    Column("quantity", "quantity", nullable=True),
    Column("unit", "text", nullable=True),
    Column("unit_price", "price", nullable=True),
)
COLUMNS = (
    Column("month", "text"),
    Column("tenant", "text"),
    Column("state", "text"),
    Column("invoice", "text", nullable=True),
    Column("basis", "text"),
    Column("line", "text"),
    Column("adapter", "text", nullable=True),
    Column("corrects", "text", nullable=True),
    *PRICED_COLUMNS,
    Column("amount", "cost"),
    Column("currency", "text", nullable=True),
)
_MILLION_TOKENS = "1000000 tokens"


def export_charges(ledger: Ledger, order: Order, path: Path, most: int) -> int:
    """Fill the file `path`, like `gateway.costs.export.files.export`, with what the tenants of the order are
    charged. Raises MissingPriceError, ParquetMissingError, LedgerUnavailableError, TooLargeError, OSError."""
    with path.open("r+b") as file, ledger.read() as connection:
        file.truncate()
        put = write_parquet if order.as_parquet else write_csv
        rows = month_charges(connection, order.month, order.tenants)
        return put(bounded(file, most), COLUMNS, {}, rows)


def month_charges(connection: Connection, month: str, tenants: tuple[str, ...] = ()) -> Iterator[Row]:
    """In order of the tenants. `tenants`: only of the one that equals each. Raises MissingPriceError if a
    statement would be charged at an unknown cost."""
    settled = settlement_now(connection, month)
    for tenant, statement in sorted(settled.settlement.statements.items()):
        if all(tenant == name for name in tenants):
            if statement.charges is None:
                _check(settled, statement)
            about = {
                "month": month,
                "tenant": tenant,
                "state": "final" if settled.state == "closed" else "preliminary",
                "basis": "rate_card" if statement.card else "cost",
                "currency": settled.currency,
            }
            invoice = in_force(read_invoices(connection, month, tenant))
            number = None if invoice is None else invoice.number
            for row in (
                *_lines(statement),
                *_manual_rows(statement),
                *_tax_rows(invoice, statement.due_cents),
            ):
                yield {**about, "invoice": number, **row}


def _check(settled: MonthSettlement, statement: TenantStatement) -> None:
    used = {line.series for line in statement.lines if line.amount_cents is not None}
    if settled.state != "closed" and (missing := sorted(used.intersection(settled.missing))):
        names = ", ".join(series_text(*series) for series in missing)
        raise MissingPriceError(no_price(names, settled.month))


def _lines(statement: TenantStatement) -> Iterator[Row]:
    if statement.charges is not None:
        for charge in statement.charges.lines:
            document = charge.document()
            amount = Fixed(charge.amount_cents, 2)
            yield {
                "line": charge.kind,
                "corrects": document.get("month"),
                **priced(document),
                "amount": amount,
            }
        return
    for line in statement.lines:
        if line.amount_cents is not None:
            yield {
                "line": _kind(line),
                "adapter": line.adapter or None,
                "corrects": line.corrects or None,
                "amount": Fixed(line.amount_cents, 2),
            }


def _manual_rows(statement: TenantStatement) -> Iterator[Row]:
    for line in statement.manual:
        amount = Fixed(line.amount_cents, 2)
        yield {"line": line.kind, "adapter": line.adapter or None, "price": line.reason, "amount": amount}
    for draw in statement.credits.draws if statement.credits else ():
        yield {"line": "prepaid_credit", "price": draw.reason, "amount": Fixed(-draw.cents, 2)}


def _kind(line: StatementLine) -> str:
    if line.correction:
        return "correction"
    return "unused_time" if line.kind == "allocated" else line.kind


def priced(line: Mapping[str, Any]) -> Row:
    """The price of a rate card's line: quantity times unit price is its amount, before rounding. With tiers
    it has no such price. `line`: as in the statement's document."""
    row: Row = {"sku": line.get("sku"), "price": line.get("price")}
    if line.get("tiers"):
        return row
    if "per_request" in line:
        charged = line["requests"] - line["free_requests"]
        return row | _quantity(Fixed(charged, 0), "requests", line["per_request"])
    if "per_million" in line:
        charged = line["tokens"] - line["free_tokens"]
        return row | _quantity(Fixed(charged, 6), _MILLION_TOKENS, line["per_million"])
    if "per_hour" in line:
        return row | _quantity(_fixed(line["hours"]), "hours", line["per_hour"])
    return row


def _quantity(quantity: Fixed, unit: str, unit_price: str) -> Row:
    return {"quantity": quantity, "unit": unit, "unit_price": _fixed(unit_price)}


def _fixed(text: str) -> Fixed:
    places = len(text.partition(".")[2])
    return Fixed(units_of(text, places), places)


def _tax_rows(invoice: Invoice | None, cents: int) -> Iterator[Row]:
    if invoice is not None and invoice.tax_micros:
        name = f"{invoice.tax_name or 'tax'} {invoice.tax_percent} %"
        yield {"line": "tax", "price": name, "amount": Fixed(invoice.tax_cents(cents), 2)}
