"""A report as a single table, for files: each row names its bucket, and the costs sum to the whole."""

from __future__ import annotations

import io
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any, Literal

from gateway.costs.cost_lines import COUNTS
from gateway.costs.export.cells import Cell, Fixed, Row
from gateway.costs.export.columns import PLACES, Column, Kind
from gateway.costs.export.writers import write_csv, write_parquet
from gateway.costs.reports.report import Question, cost_report, lists_of
from gateway.metering.ledger.ledger import Ledger

FileFormat = Literal["csv", "parquet"]
_PARTS = ("retry_waste", "headroom", "startup", "idle")
_EXACT = Context(prec=60)


def report_file(
    ledger: Ledger, question: Question, kind: FileFormat, *, now: int, currency: str | None = None
) -> tuple[bytes, dict[str, Any]]:
    """`cost_report` as a file, and separately `complete`, `next` and the number of `rows`.

    Raises ExchangeRateError, LedgerUnavailableError, ParquetMissingError."""
    report = cost_report(ledger, question, now=now, currency=currency)
    file = io.BytesIO()
    write = write_csv if kind == "csv" else write_parquet
    count = write(file, columns(report), constants(report), rows(report))
    beside = {"complete": report["complete"], "next": report["next"], "lists": lists_of(report)}
    return file.getvalue(), {**beside, "rows": count}


def columns(report: dict[str, Any]) -> list[Column]:
    allocated: dict[str, Kind] = {"allocated_gpu_hours": "quantity", "allocated_cost": "cost"}
    times: dict[str, Kind] = {"gpu_hours": "quantity", "cost": "cost"}
    times |= allocated if "allocated_cost" in report["totals"] else {}
    return [
        Column("from", "time"),
        Column("to", "time"),
        Column("bucket", "text"),
        Column("corrects", "text", nullable=True),
        *(Column(name, "text", nullable=True) for name in _dimensions(report)),
        *(Column(name, "integer") for name in COUNTS),
        *(Column(name, kind, nullable=True) for name, kind in times.items()),
        Column("currency", "text", nullable=True),
    ]


def constants(report: dict[str, Any]) -> Row:
    return {name: report[name] for name in ("from", "to", "currency")}


def rows(report: dict[str, Any]) -> Iterator[Row]:
    """Delivered usage, the other buckets, and corrections with the month that they correct."""
    names = _dimensions(report)
    parts = [("usage", report["rows"])]
    parts += [(bucket, report[bucket]["rows"]) for bucket in _PARTS if bucket in report]
    for bucket, part_rows in parts:
        for row in part_rows:
            yield _row(row, names, bucket, None)
    for row in report["corrections"]["rows"]:
        yield _row(row, names, row["bucket"], row["month"])


def _dimensions(report: dict[str, Any]) -> tuple[str, ...]:
    by = tuple(report["by"])
    return by if "gpu_type" in by else (*by, "gpu_type")


def _row(row: dict[str, Any], names: tuple[str, ...], bucket: str, corrects: str | None) -> Row:
    cells: Row = {"bucket": bucket, "corrects": corrects}
    cells |= {name: row.get(name) for name in names} | {name: row.get(name, 0) for name in COUNTS}
    cells |= {"gpu_hours": Fixed(row["nano_gpu_hours"], 9), "cost": _fixed(row["cost"])}
    if "allocated_cost" in row:
        cells["allocated_gpu_hours"] = Fixed(row["allocated_nano_gpu_hours"], 9)
        cells["allocated_cost"] = _fixed(row["allocated_cost"])
    return cells


def _fixed(cost: str | None) -> Cell:
    return None if cost is None else Fixed(int(_EXACT.scaleb(Decimal(cost), PLACES["cost"])), PLACES["cost"])
