"""A statement as a table, for spreadsheets: one line for each amount, and the amounts sum to the statement's,
before tax. The tax is a line of its own, so that all lines sum to the total. Divided by a dimension, the
lines are its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.costs.export.cells import Cell, Fixed, Row
from gateway.costs.export.columns import Column
from gateway.costs.statement.charge_rows import PRICED_COLUMNS, priced

_COUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens")
COLUMNS = (
    Column("statement", "text"),
    Column("state", "text"),
    Column("invoice", "text", nullable=True),
    Column("line", "text"),
    Column("name", "text", nullable=True),
    Column("label", "text", nullable=True),
    Column("gpu", "text", nullable=True),
    Column("month", "text", nullable=True),
    *(Column(name, "integer", nullable=True) for name in _COUNTS),
    *PRICED_COLUMNS,
    Column("amount", "cost"),
    Column("total", "cost"),
    Column("currency", "text", nullable=True),
)


def constants(document: Mapping[str, Any]) -> Row:
    """`total`: of the statement, with tax, on each line."""
    invoice = document["invoice"]
    return {
        **{name: document[name] for name in ("statement", "currency")},
        "state": document["state"] if document.get("complete", True) else "incomplete",
        "invoice": None if invoice is None else invoice["number"],
        "total": Fixed(document["total_cents"], 2),
    }


def rows(document: Mapping[str, Any]) -> Iterator[Row]:
    """`document`: of `gateway.costs.statement.document`, or of a credit note."""
    division = document.get("division")
    if "credit" in document:
        yield _row("credit_note", document["credit"])
    elif division is not None:
        for row in division["rows"]:
            yield _row(division["by"], row)
        yield from _sums(unused_time=division["unused_time_cents"], other=division["other_cents"])
    elif document["charges"] is not None:
        for row in document["charges"]["lines"]:
            shown = {"month": row.get("month"), "amount_cents": row["amount_cents"]}
            yield {**_row(row["kind"], shown), **priced(row)}
        yield from _manual(document)
    else:
        for row in document["usage"]:
            yield _row("usage", row)
        yield from _sums(unused_time=document["unused_time_cents"])
        for row in document["corrections"]:
            yield _row("correction", row)
        yield from _manual(document)
    if (invoice := document["invoice"]) is not None and document["tax_cents"]:
        rate = f"{invoice['tax_name'] or 'tax'} {invoice['tax_percent']} %"
        yield _row("tax", {"name": rate, "amount_cents": document["tax_cents"]})


def _manual(document: Mapping[str, Any]) -> Iterator[Row]:
    for row in document["manual_lines"]:
        yield _row(row["kind"], {"name": row["reason"], "amount_cents": row["amount_cents"]})
    for row in document.get("credits", {}).get("draws", ()):
        yield _row("prepaid_credit", {"name": row["reason"], "amount_cents": -row["cents"]})


def _row(line: str, row: Mapping[str, Any]) -> Row:
    cells: dict[str, Cell] = {"line": line, "amount": Fixed(row["amount_cents"], 2)}
    return cells | {name: row[name] for name in ("name", "label", "gpu", "month", *_COUNTS) if name in row}


def _sums(**cents: int) -> Iterator[Row]:
    for line, amount in cents.items():
        if amount:
            yield _row(line, {"amount_cents": amount})
