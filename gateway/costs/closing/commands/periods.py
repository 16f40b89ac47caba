"""florin cost periods, close"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.commands.client import Api, Json, read, segment
from gateway.commands.options import with_options
from gateway.commands.output import clean, console, facts, note, say, show, table
from gateway.commands.session import Session, command, confirm
from gateway.costs.closing.commands.preview import CHARGED, COST, announce, money, question, show_preview
from gateway.costs.closing.schemas import ClosedMonth, ClosingPreview, ClosingTerms, Month
from gateway.costs.policies.commands.shares import Share, policy_in_words, shares_of
from gateway.schemas.base import Listed
from gateway.units import NanoHours, gpu_hours_text, shown

app = typer.Typer()

_PATH = "/finance/v1/periods"


@command(app, "periods")
def periods(session: Session) -> None:
    """List the months with usage: open, or closed with their seals.

    Example: florin cost periods
    """
    session.result(session.api.get(_PATH, Listed[Month]), _periods)


def _periods(months: Listed[Month]) -> None:
    if not months.data:
        note("No month has any usage yet.")
        return
    rows = [
        (
            month.month,
            "open, can be closed" if month.can_be_closed else month.state,
            month.records,
            month.totals and money(month.totals.billed.amount_cents, month.currency),
            None if month.charged_cents is None else money(month.charged_cents, month.currency),
            month.closed_at,
            month.seal,
        )
        for month in months.data
    ]
    heads = ("month", "state", "records", COST, CHARGED, "closed", "seal")
    show(table(heads, rows, right=heads[2:5]))


@command(app, "close")
@with_options(ClosingTerms)
def close(
    session: Session,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="Month, for example 2026-11.")],
    *,
    share: Share = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show each customer's statement and what prevents closing; close nothing."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Skip the confirmation prompt. Required without a terminal.")
    ] = False,
    changes: Json,
) -> None:
    """Close a month: its figures never change again, and a seal (a Merkle root) proves what they are.

    Later changes (records of a disconnected worker, a price, a calibration) become correction rows in the
    next open month. A gateway flushes only its own usage log: close the month when every worker has been
    running, or was restarted, since the month ended.

    Example: florin cost close 2026-11 --dry-run
    """
    query: Json = {"policy": changes.get("policy")}
    if share:
        changes["shares"], changes["shares_total"] = shares_of(share)
        query["shares"] = ",".join(share)
    api, path = session.api, f"{_PATH}/{segment(month)}"
    if dry_run:
        session.result(api.get(f"{path}/preview", ClosingPreview, query), show_preview)
        return
    before = api.get(path, Month)
    if before.request is not None:
        note(f"{clean(before.request.requested_by)} requested it at {clean(before.request.requested_at)}.")
    if before.state != "closed":
        preview = api.get(f"{path}/preview", ClosingPreview, query)
        announce(preview, force=changes.get("force", False))
        confirm(question(preview), yes=yes, unattended=False)
    month_now = _close(api, path, changes)
    if month_now.request is not None:
        session.result(month_now, _requested)
    else:
        session.result(read(ClosedMonth, month_now.body, api.url), _closed)


def _requested(month: Month) -> None:
    assert month.request is not None
    by, since = clean(month.request.requested_by), clean(month.request.requested_at)
    say(f"{clean(month.month)} is not closed yet: {by} requested it at {since}.")
    note(f"Another person closes it, with the same options: florin cost close {clean(month.month)}")


def _close(api: Api, path: str, body: Json) -> Month:
    """Retries until the month is closed, or a second person has to close it. Shows progress on a terminal."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        month = _watched(api, path, pool.submit(api.post, f"{path}/close", body, Month))
        waited = False
        while month.state != "closed" and month.request is None:
            waited = True
            month = _watched(api, path, pool.submit(api.post, f"{path}/close", body, Month))
    if month.request is not None:
        return month
    return read(Month, month.body | {"already": bool(month.already) and not waited}, api.url)


def _watched(api: Api, path: str, answer: Future[Month]) -> Month:
    screen = console(stderr=True)
    if not screen.is_terminal:
        return answer.result()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        bar = progress.add_task("closing", total=None)
        while not answer.done():
            if (step := api.get(path, Month).progress) is not None:
                progress.update(bar, description=clean(step.doing), completed=step.done, total=step.total)
            time.sleep(0.5)
    return answer.result()


def _closed(month: ClosedMonth) -> None:
    if month.already:
        note(f"{clean(month.month)} was already closed at {clean(month.closed_at)}; nothing changed.")
    totals, currency = month.totals, month.currency
    show(
        facts(
            (
                ("month", month.month),
                ("records", month.records),
                ("policy", policy_in_words(month)),
                (COST, money(totals.billed.amount_cents, currency)),
                (CHARGED, None if month.charged_cents is None else money(month.charged_cents, currency)),
                ("cost of retries", money(totals.retry_waste.amount_cents, currency)),
                ("cost of unused time", money(totals.unallocated.amount_cents, currency)),
                ("cost in all", money(totals.amount_cents, currency)),
                ("seal", month.seal),
                ("previous seal", month.previous_seal),
            )
        )
    )
    for series in month.missing_prices:
        note(f"No price, so charged nothing: {clean(series)}")
    rows = [
        (
            s.tenant, s.records, _hours(s.nano_gpu_hours),
            _hours(s.allocated_nano_gpu_hours), money(s.amount_cents, currency),
            money(s.amount_cents if s.charged_cents is None else s.charged_cents, currency),
            s.seal,
        )
        for s in month.statements
    ]  # fmt: skip  # a row
    heads = ("tenant", "records", "GPU-hours", "allocated", "cost", "charged", "seal of records")
    if rows:
        show(table(heads, rows, right=heads[1:6]))


def _hours(nano: NanoHours | None) -> str:
    return shown(None if nano is None else gpu_hours_text(nano), 6)
