"""florin cost import-bill | bills | remove-bill"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from adapters.wording import counted
from gateway.commands.client import Json, UsageError, read, segment
from gateway.commands.output import busy, clean, note, say, show, table
from gateway.commands.session import Session, command, confirm
from gateway.costs.reconciliation.schemas.bills import Bill, ImportedBill, RemovedBill
from gateway.schemas.base import Listed

app = typer.Typer()

_SHOWN = 12
"""Digits of a SHA-256: enough to name an import."""


class BillFileFormat(StrEnum):
    CSV = "csv"
    FOCUS = "focus"
    AWS = "aws"


class DecimalMark(StrEnum):
    POINT = "point"
    COMMA = "comma"


class End(StrEnum):
    EXCLUSIVE = "exclusive"
    INCLUSIVE = "inclusive"


class Cost(StrEnum):
    BILLED = "billed"
    EFFECTIVE = "effective"


@command(app, "import-bill")
def import_bill(
    session: Session,
    file: Annotated[Path, typer.Argument(help="The bill: CSV, UTF-8.")],
    *,
    kind: Annotated[
        BillFileFormat | None,
        typer.Option("--format", help="Default: detected from the header.", show_default=False),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="Map a field to a column: FIELD=COLUMN, or FIELD=COLUMN.KEY for a JSON column. Repeatable.",
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            help="Rename a value: FIELD:THEIRS=OURS, for example gpu_type:p5.48xlarge=H100. Repeatable."
        ),
    ] = None,
    cost: Annotated[Cost, typer.Option(help="FOCUS: the cost column to use.")] = Cost.BILLED,
    decimal: Annotated[
        DecimalMark, typer.Option(help="`comma`: numbers are written like 1.234,56.")
    ] = DecimalMark.POINT,
    end: Annotated[
        End, typer.Option(help="`inclusive`: an end of 2026-10-31 includes that day.")
    ] = End.EXCLUSIVE,
    gpus_only: Annotated[
        bool,
        typer.Option("--gpus-only", help="Leave out taxes, credits and fees that name no GPU type."),
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Import the valid lines and skip the others.")
    ] = False,
) -> None:
    """Import a GPU provider's bill for reconciliation: plain CSV, FOCUS 1.0 to 1.4, or an AWS
    Cost and Usage Report.

    CSV columns: start, end, resource, gpu_type, region, purchase, gpu_hours, cost, currency, description,
    category (usage, tax, credit, purchase or adjustment; only usage needs GPU type and hours), separated by
    commas, semicolons or tabs. Importing the same file again changes nothing. Nothing is imported unless
    every line is valid.

    Example: florin cost import-bill july.csv --map resource=Tags.engine
    """
    from gateway.costs.reconciliation.bill_files import MAX_BYTES  # loads the ledger's modules

    params: Json = {
        "file_name": file.name,
        "format": kind.value if kind else None,
        "map": columns or None,
        "rename": rename or None,
        "cost": cost.value,
        "decimal": None if decimal is DecimalMark.POINT else decimal.value,
        "end": None if end is End.EXCLUSIVE else end.value,
        "gpus_only": "true" if gpus_only else None,
        "skip_bad": "true" if skip_bad else None,
    }
    try:
        if (
            file.stat().st_size > MAX_BYTES
        ):  # checked first: a refusal may not get through while the file is being sent
            raise UsageError(f"{file} is larger than {MAX_BYTES:,} bytes: split it.")
        with file.open("rb") as content, busy(f"Importing {file.name}"):
            body = session.api.upload("/finance/v1/bills", content, params)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}.") from error
    session.result(read(ImportedBill, body, session.gateway), _imported)


def _imported(body: ImportedBill) -> None:
    known = body.lines - body.new
    already = f" (already imported: {counted(known, 'line')})" if known else ""
    say(
        f"Imported {counted(body.new, 'line')} of {clean(body.file_name)}: {body.gpu_hours} GPU-hours, "
        f"{_money(body.cost)}{already}."
    )
    if body.repeated:
        note(
            f"Identical to lines of another import: {counted(body.repeated, 'line')}. See florin cost bills."
        )
    if body.ignored:
        note(f"Skipped, not about GPUs: {counted(body.ignored, 'line')}, {_money(body.ignored_cost)}.")
    if body.bad_lines:
        note(f"Skipped, invalid: {counted(body.bad_lines, 'line')}:")
        for bad in body.bad_reasons:
            note(f"  {clean(bad.where)}: {clean(bad.reason)}")
    if body.charges:
        note(f"Of it taxes, credits and fees that name no GPU type: {_money(body.charges)}.")
    if body.inclusive_looking:
        note(
            f"{counted(body.inclusive_looking, 'line ends', 'lines end')} on the last day of a month or "
            "in the last second of a "
            "minute, and ends are read as exclusive. If this bill's ends are inclusive, remove it and import "
            "it again with --end inclusive."
        )
    note(f"To undo: florin cost remove-bill {body.source[:_SHOWN]}")


@command(app, "bills")
def bills(session: Session) -> None:
    """List imported bills, newest first.

    Example: florin cost bills
    """

    def people(body: Listed[Bill]) -> None:
        if not body.data:
            note("No bills yet: florin cost import-bill FILE")
            return
        rows = [
            (
                b.source[:_SHOWN], b.file_name, b.lines, b.start, b.to, b.gpu_hours,
                _money(b.cost), b.imported_at,
            )
            for b in body.data
        ]  # fmt: skip  # as the columns
        columns = ("source", "file", "lines", "from", "to", "GPU-hours", "cost", "imported")
        show(table(columns, rows, right=("lines", "GPU-hours", "cost")))

    session.result(session.api.get("/finance/v1/bills", Listed[Bill]), people)


@command(app, "remove-bill")
def remove_bill(
    session: Session,
    source: Annotated[str, typer.Argument(help="The source shown by `florin cost bills`.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
) -> None:
    """Remove an imported bill.

    Example: florin cost remove-bill 3f2a90c1d4e7
    """
    confirm(f"Remove the bill {source}?", yes=yes)
    removed = session.api.delete(f"/finance/v1/bills/{segment(source)}", RemovedBill)
    session.result(removed, lambda b: say(f"Removed {counted(b.lines, 'line')}."))
    for month in removed.trued_up:
        note(
            f"{clean(month)} was trued up to this bill and keeps its cost. Import the corrected bill, then "
            f"run florin cost true-up {clean(month)}."
        )


def _money(cost: Json) -> str:
    return ", ".join(f"{amount} {currency}" for currency, amount in cost.items()) or "nothing"
