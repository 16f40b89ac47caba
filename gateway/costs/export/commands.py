"""florin cost export"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adapters.wording import counted
from gateway.commands.client import UsageError
from gateway.commands.download import download
from gateway.commands.output import note, note_incomplete
from gateway.commands.session import Session, command
from gateway.costs.export.columns import DATASETS, DEFAULT_FORMATS, FORMATS, GRANULARITIES

app = typer.Typer()


@command(app, "export")
def export(
    session: Session,
    *,
    month: Annotated[str, typer.Option(help="Month in UTC, for example 2026-07.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; replaced if it exists.")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="focus-1.2, focus-1.4, csv, parquet, vantage or cloudzero; charges: csv or parquet; "
            "commitments: focus-1.4. Default: focus-1.2, or the first of these.",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        str,
        typer.Option(
            help="chargeback: the cost of tokens by tenant; infrastructure: that of engine-hours, and who "
            "used them; charges: what each customer is charged, line by line of its statement; commitments: "
            "the terms of recorded commitments (FOCUS's Contract Commitment dataset)."
        ),
    ] = "chargeback",
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write FOCUS as Parquet instead of CSV.")
    ] = False,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's rows.")] = None,
    granularity: Annotated[str, typer.Option(help="hourly or daily: what a row covers, in UTC.")] = "hourly",
) -> None:
    """Export a month's costs to a file: FOCUS 1.2 or 1.4, plain ledger lines as CSV or Parquet, or what
    Vantage and CloudZero import. Or what all customers are charged, by customer and line.

    Example: florin cost export --month 2026-07 --dataset infrastructure --output july.csv
    """
    kind = kind or DEFAULT_FORMATS.get(dataset, "focus-1.2")
    for name, value, known in (
        ("--format", kind, FORMATS),
        ("--dataset", dataset, DATASETS),
        ("--granularity", granularity, GRANULARITIES),
    ):
        if value not in known:
            raise UsageError(f"{name} {value!r} is not one of {', '.join(known)}.")
    params = {
        "month": month,
        "format": kind,
        "dataset": dataset,
        "parquet": "true" if parquet else None,
        "tenant": tenant,
        "granularity": None if granularity == "hourly" else granularity,
    }
    saved = download(session.api, "/finance/v1/export", params, output)
    body = {
        "file": str(output),
        "bytes": saved.size,
        "rows": saved.rows,
        "format": kind,
        "dataset": dataset,
        **saved.completeness.model_dump(exclude_defaults=True),
    }
    session.result(body, lambda _: note(f"{output}: {counted(saved.rows, 'row')}, {saved.size:,} bytes."))
    note_incomplete(saved.completeness)
