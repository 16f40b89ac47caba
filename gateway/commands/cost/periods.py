"""florin cost periods, close"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.commands.client import Api, Json, segment
from gateway.commands.cost.closing_preview import announce, money, question, show_preview
from gateway.commands.cost.idle_policy import IdlePolicy
from gateway.commands.cost.shares import Share, policy_in_words, shares_of
from gateway.commands.output import clean, console, facts, note, show, table
from gateway.commands.session import Session, command, confirm
from gateway.units import gpu_hours_text, shown

app = typer.Typer()

_PATH = "/finance/v1/periods"


@command(app, "periods")
def periods(session: Session) -> None:
    """List the months with usage: open, or closed with their seals.

    Example: florin cost periods
    """
    session.result(session.api.get(_PATH), _periods)


def _periods(body: Json) -> None:
    rows = []
    for period in body["data"]:
        totals = period.get("totals") or {}
        billed = money((totals.get("billed") or {}).get("amount_cents"), period.get("currency"))
        state = "open, can be closed" if period.get("can_be_closed") else period["state"]
        row = (period["month"], period["state"] if period["state"] != "open" else state)
        rows.append((*row, period.get("records"), billed, period.get("closed_at"), period.get("seal")))
    if not rows:
        note("No month has any usage yet.")
        return
    show(table(("month", "state", "records", "billed", "closed", "seal"), rows, right=("records", "billed")))


@command(app, "close")
def close(
    session: Session,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="Month, for example 2026-11.")],
    *,
    policy: Annotated[
        IdlePolicy | None,
        typer.Option(
            help="Who pays for idle time, spare capacity and start-up in this month. Default: the standing "
            "policy (florin cost policy show).",
            show_default=False,
        ),
    ] = None,
    share: Share = None,
    allow_missing_prices: Annotated[
        bool,
        typer.Option(
            "--allow-missing-prices",
            help="Charge nothing for GPU time without a price; a price added later becomes a correction.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Close within an hour of the month's end, although workers may not have shipped all "
            "records.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show each customer's statement and what prevents closing; close nothing."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Skip the confirmation prompt. Required without a terminal.")
    ] = False,
) -> None:
    """Close a month: its figures never change again, and a seal (a Merkle root) proves what they are.

    Later changes (records of a disconnected worker, a price, a calibration) become correction rows in the
    next open month. A gateway flushes only its own usage log: close the month when every worker has been
    running, or was restarted, since the month ended.

    Example: florin cost close 2026-11 --dry-run
    """
    shares, total = shares_of(share) if share else (None, None)
    body: Json = {
        "policy": None if policy is None else policy.value,
        "shares": shares,
        "shares_total": total,
        "allow_missing_prices": allow_missing_prices,
        "force": force,
    }
    api, path = session.api, f"{_PATH}/{segment(month)}"
    asked = {"policy": body["policy"], "shares": ",".join(share) if share else None}
    if dry_run:
        session.result(api.get(f"{path}/preview", asked), show_preview)
        return
    if api.get(path)["state"] != "closed":
        preview = api.get(f"{path}/preview", asked)
        announce(preview, force=force)
        confirm(question(preview), yes=yes, unattended=False)
    session.result(_close(api, path, body), _closed)


def _close(api: Api, path: str, body: Json) -> Json:
    """Retries until the month is closed, and shows progress on a terminal."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        period = _watched(api, path, pool.submit(api.post, f"{path}/close", body))
        waited = False
        while period["state"] != "closed":
            waited = True
            period = _watched(api, path, pool.submit(api.post, f"{path}/close", body))
    return {**period, "already": period["already"] and not waited}


def _watched(api: Api, path: str, answer: Future[Json]) -> Json:
    screen = console(stderr=True)
    if not screen.is_terminal:
        return answer.result()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        bar = progress.add_task("closing", total=None)
        while not answer.done():
            if (at := api.get(path).get("progress")) is not None:
                progress.update(bar, description=clean(at["doing"]), completed=at["done"], total=at["of"])
            time.sleep(0.5)
    return answer.result()


def _closed(period: Json) -> None:
    if period["already"]:
        note(f"{clean(period['month'])} was already closed at {clean(period['closed_at'])}; nothing changed.")
    totals, currency = period["totals"], period["currency"]
    show(
        facts(
            (
                ("month", period["month"]),
                ("records", period["records"]),
                ("policy", policy_in_words(period)),
                *((label, money(totals[name]["amount_cents"], currency)) for name, label in _PARTS.items()),
                ("total", money(totals["amount_cents"], currency)),
                ("seal", period["seal"]),
                ("previous seal", period["previous_seal"]),
            )
        )
    )
    for series in period["missing_prices"]:
        note(f"No price, so charged nothing: {clean(series)}")
    rows = [
        (
            s["tenant"], s["records"], shown(gpu_hours_text(s["nano_gpu_hours"]), 6),
            shown(gpu_hours_text(s["allocated_nano_gpu_hours"]), 6),
            money(s["amount_cents"], currency), s["seal"],
        )
        for s in period["statements"]
    ]  # fmt: skip  # a row
    heads = ("tenant", "records", "GPU-hours", "allocated", "amount", "seal of records")
    if rows:
        show(table(heads, rows, right=heads[1:5]))


_PARTS = {"billed": "billed", "retry_waste": "retry waste", "unallocated": "unused time"}
