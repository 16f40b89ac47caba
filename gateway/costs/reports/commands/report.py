"""florin cost report"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from adapters.wording import counted
from gateway.commands.client import Api, Json, UsageError
from gateway.commands.output import note, note_incomplete
from gateway.commands.session import Session, command
from gateway.costs.reports.commands import report_tables
from gateway.costs.reports.schemas.costs import CostReport
from gateway.schemas.finance import Complete

if TYPE_CHECKING:
    import httpx2

app = typer.Typer()

_PATH = "/finance/v1/costs"


_FILES = {"csv", "parquet"}


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
        Literal["none", "proportional", "even", "fixed"] | None,
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
    kind: Annotated[
        Literal["table", "json", "csv", "parquet"], typer.Option("--format", help="Output format.")
    ] = "table",
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
    if output is None and kind == "parquet":
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
        "policy": policy,
        "shares": ",".join(share) if share else None,
        "currency": currency,
    }
    if kind in _FILES:
        _file(session, {**params, "format": kind}, output)
        return
    session = replace(session, json=session.json or kind == "json")
    pages = list(cost_pages(session.api, params))
    session.result(_merged(pages), partial(report_tables.show_report, unit_prices=unit_prices))


def cost_pages(api: Api, params: Json) -> Iterator[CostReport]:
    """Each page of a report; its totals are on all of them."""
    after: str | None = None
    while True:
        page = api.get(_PATH, CostReport, {**params, "after": after})
        yield page
        after = page.next
        if after is None:
            return


def _merged(pages: Sequence[CostReport]) -> CostReport:
    """One report with the rows of all pages."""
    if len(pages) == 1:
        return pages[0]
    sent = [page.body for page in pages]
    rows = [row for body in sent for row in body["rows"]]
    labels = {key: label for page in pages for key, label in page.key_labels.items()}
    return CostReport.read(
        sent[0] | {"rows": rows, "next": None} | ({"key_labels": labels} if labels else {})
    )


def _file(session: Session, params: Json, output: Path | None) -> None:
    from gateway.commands.download import download  # loads progress bars, which tables do not need

    if output is None:
        content, completeness = session.api.stream(_PATH, params, _read)
        sys.stdout.write(content)
    else:
        saved = download(session.api, _PATH, params, output)
        completeness = saved.completeness
        body = {
            "file": str(output),
            "bytes": saved.size,
            "rows": saved.rows,
            "format": params["format"],
            **completeness.model_dump(exclude_defaults=True),
        }
        session.result(body, lambda _: note(f"{output}: {counted(saved.rows, 'row')}, {saved.size:,} bytes."))
    note_incomplete(completeness)


def _read(answer: httpx2.Response) -> tuple[str, Complete]:
    from gateway.commands.download import completeness  # as above

    return answer.read().decode(), completeness(answer)
