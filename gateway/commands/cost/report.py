"""florin cost report"""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.cost import report_tables
from gateway.commands.cost.idle_policy import IdlePolicy
from gateway.commands.output import note, note_incomplete
from gateway.commands.session import Session, command

if TYPE_CHECKING:
    import httpx2

app = typer.Typer()

_PATH = "/finance/v1/costs"


class ReportFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


_FILES = {ReportFormat.CSV, ReportFormat.PARQUET}


@command(app, "report")
def report(
    session: Session,
    *,
    by: Annotated[
        str,
        typer.Option(
            help="Any of tenant, adapter, version, base_model, gpu_type, engine, region, purchase, hour and "
            "day, and at most two of key, end_user, tag and cost_centre."
        ),
    ] = "tenant,adapter,gpu_type",
    month: Annotated[str | None, typer.Option(help="Month, for example 2026-07.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="Start, ISO 8601, inclusive.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="End, ISO 8601, exclusive.")] = None,
    timezone: Annotated[
        str | None,
        typer.Option(
            help="Timezone of days, months and times, for example Europe/Berlin. Default: UTC, in which "
            "months are closed.",
            show_default=False,
        ),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    policy: Annotated[
        IdlePolicy | None,
        typer.Option(
            help="How to allocate unused GPU time. Default: as the month was closed, or not at all.",
            show_default=False,
        ),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(help="For policy fixed: TENANT=SHARE. Repeatable.", show_default=False),
    ] = None,
    currency: Annotated[
        str | None,
        typer.Option(
            help="Convert all amounts, for example to EUR, at the exchange rate of the end of the period: "
            "see florin exchange-rate. Default: the price book's currency.",
            show_default=False,
        ),
    ] = None,
    unit_prices: Annotated[
        bool,
        typer.Option(
            "--unit-prices",
            help="Also show what a million tokens cost, excluding and including unused time.",
        ),
    ] = False,
    kind: Annotated[ReportFormat, typer.Option("--format", help="Output format.")] = ReportFormat.TABLE,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write, for csv and parquet.", show_default=False),
    ] = None,
) -> None:
    """Report what each customer used and cost, and the cost of unused time. Together they are the provisioned
    GPU cost at list price. Default: this month.

    Example: florin cost report --month 2026-07 --by tenant,gpu_type
    """
    if month and (start or end):
        raise UsageError("--month cannot be combined with --from or --to.")
    if output is None and kind is ReportFormat.PARQUET:
        raise UsageError("--format parquet requires --output FILE, since it is binary.")
    if output is not None and kind not in _FILES:
        raise UsageError("--output requires --format csv or parquet.")
    if unit_prices and kind in _FILES:
        raise UsageError("--unit-prices cannot be combined with --format csv or parquet.")
    params: Json = {
        "by": by,
        "month": month,
        "from": start,
        "to": end,
        "timezone": timezone,
        "tenant": tenant,
        "policy": policy.value if policy else None,
        "shares": ",".join(share) if share else None,
        "currency": currency,
    }
    if kind in _FILES:
        _file(session, {**params, "format": kind.value}, output)
        return
    asked = replace(session, json=session.json or kind is ReportFormat.JSON)
    asked.result(_all(session, params), partial(report_tables.show_report, unit_prices=unit_prices))


def _all(session: Session, params: Json) -> Json:
    """All pages in one object."""
    body = session.api.get(_PATH, params)
    after = body.get("next")
    while after is not None:
        page = session.api.get(_PATH, {**params, "after": after})
        body["rows"] += page["rows"]
        body.get("key_labels", {}).update(page.get("key_labels", {}))
        after = page["next"]
    return {**body, "next": None}


def _file(session: Session, params: Json, output: Path | None) -> None:
    from gateway.commands.download import download  # loads progress bars, which tables do not need

    if output is None:
        content, beside = session.api.stream(_PATH, params, _read)
        sys.stdout.write(content)
    else:
        saved = download(session.api, _PATH, params, output)
        beside = saved.completeness
        body = {
            "file": str(output),
            "bytes": saved.size,
            "rows": saved.rows,
            "format": params["format"],
            **beside,
        }
        session.result(body, lambda _: note(f"{output}: {saved.rows:,} rows, {saved.size:,} bytes."))
    note_incomplete(beside)


def _read(answer: httpx2.Response) -> tuple[str, Json]:
    from gateway.commands.download import completeness  # as above

    return answer.read().decode(), completeness(answer)
