"""florin batch …"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gateway.batches.documents import OPEN
from gateway.batches.schemas import Batch, BatchPage
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import Session, command

app = typer.Typer()

_PATH = "/admin/v1/batches"
BatchId = Annotated[str, typer.Argument(metavar="ID", help="Id of the batch, batch_….")]


@command(app, "list")
def list_(
    session: Session,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only the batches of this tenant.")] = None,
    status: Annotated[
        str | None, typer.Option(help="Only batches with this status, for example in_progress.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number to list.")] = 100,
) -> None:
    """List the batches of all tenants, newest first.

    Example: florin batch list --status in_progress
    """
    query = {"tenant": tenant, "status": status, "limit": str(limit)}
    session.result(session.api.get(_PATH, BatchPage, query), _batches)


def _batches(page: BatchPage) -> None:
    if not page.data:
        note("No batches.")
        return
    columns = ("batch", "tenant", "model", "status", "answered", "failed", "lines", "age", "left")
    now = time.time()
    rows = [
        (
            b.id, b.tenant, b.model or "", b.status, f"{b.request_counts.completed:,}",
            f"{b.request_counts.failed:,}", f"{b.request_counts.total:,}",
            _hours(now - b.created_at), _hours(b.expires_at - now) if b.status in OPEN else "",
        )
        for b in page.data
    ]  # fmt: skip  # one name a line says no more
    show(table(columns, rows, right=columns[4:]))
    if page.has_more:
        note("There are more: see --limit.")


@command(app, "show")
def show_(session: Session, batch: BatchId) -> None:
    """Show one batch: progress, tokens, errors, and the worker that runs it.

    Example: florin batch show batch_6f1c0d2e9a4b8c7d5e3f1a2b
    """
    session.result(session.api.get(f"{_PATH}/{batch}", Batch), _batch)


def _batch(b: Batch) -> None:
    counts, usage = b.request_counts, b.usage
    rows = [
        ("tenant", b.tenant),
        ("key", b.key),
        ("endpoint", b.endpoint),
        ("model", b.model or ""),
        ("status", b.status),
        ("lines", f"{counts.total:,}: {counts.completed:,} answered, {counts.failed:,} failed"),
        ("tokens", f"{usage.input_tokens:,} input, {usage.output_tokens:,} output"),
        ("worker", b.worker or ""),
        ("last progress", b.progress_at),
        ("output file", b.output_file_id or ""),
        ("error file", b.error_file_id or ""),
    ]
    show(table((b.id, ""), rows))
    for error in b.errors.data if b.errors else ():
        line = "" if error.line is None else f"line {error.line:,}: "
        say(f"{line}{clean(error.message)}")


@command(app, "cancel")
def cancel(session: Session, batch: BatchId) -> None:
    """Cancel a batch. Answers so far are kept; lines in flight are aborted and not billed.

    Example: florin batch cancel batch_6f1c0d2e9a4b8c7d5e3f1a2b
    """
    session.result(
        session.api.post(f"{_PATH}/{batch}/cancel", {}, Batch),
        lambda b: say(f"Batch {clean(b.id)} is {clean(b.status)}."),
    )


def _hours(seconds: float) -> str:
    return f"{max(0.0, seconds) / 3600:.1f} h"
