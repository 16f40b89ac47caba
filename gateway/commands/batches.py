"""florin batch …"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gateway.commands.client import Json
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
    asked = {"tenant": tenant, "status": status, "limit": str(limit)}
    session.result(session.api.get(_PATH, asked), _batches)


def _batches(body: Json) -> None:
    if not body["data"]:
        note("No batches.")
        return
    columns = ("batch", "tenant", "model", "status", "answered", "failed", "lines", "age", "left")
    now = time.time()
    rows = [
        (
            b["id"], b["tenant"], b["model"] or "", b["status"], f"{b['request_counts']['completed']:,}",
            f"{b['request_counts']['failed']:,}", f"{b['request_counts']['total']:,}",
            _hours(now - b["created_at"]), _hours(b["expires_at"] - now) if _open(b) else "",
        )
        for b in body["data"]
    ]  # fmt: skip  # one name a line says no more
    show(table(columns, rows, right=columns[4:]))
    if body["has_more"]:
        note("There are more: see --limit.")


@command(app, "show")
def show_(session: Session, batch: BatchId) -> None:
    """Show one batch: progress, tokens, errors, and the worker that runs it.

    Example: florin batch show batch_6f1c0d2e9a4b8c7d5e3f1a2b
    """
    session.result(session.api.get(f"{_PATH}/{batch}"), _one)


def _one(b: Json) -> None:
    counts, used = b["request_counts"], b["usage"]
    rows = [
        ("tenant", b["tenant"]),
        ("key", b["key"]),
        ("endpoint", b["endpoint"]),
        ("model", b["model"] or ""),
        ("status", b["status"]),
        ("lines", f"{counts['total']:,}: {counts['completed']:,} answered, {counts['failed']:,} failed"),
        ("tokens", f"{used['input_tokens']:,} input, {used['output_tokens']:,} output"),
        ("worker", b["worker"] or ""),
        ("last progress", b["progress_at"]),
        ("output file", b["output_file_id"] or ""),
        ("error file", b["error_file_id"] or ""),
    ]
    show(table((b["id"], ""), rows))
    for error in b["errors"]["data"] if b["errors"] else ():
        where = "" if error["line"] is None else f"line {error['line']:,}: "
        say(f"{where}{clean(error['message'])}")


@command(app, "cancel")
def cancel(session: Session, batch: BatchId) -> None:
    """Cancel a batch. Answers so far are kept; lines in flight are aborted and not billed.

    Example: florin batch cancel batch_6f1c0d2e9a4b8c7d5e3f1a2b
    """
    session.result(
        session.api.post(f"{_PATH}/{batch}/cancel", {}),
        lambda b: say(f"Batch {clean(b['id'])} is {clean(b['status'])}."),
    )


def _open(batch: Json) -> bool:
    return batch["status"] in ("validating", "in_progress", "finalizing", "cancelling")


def _hours(seconds: float) -> str:
    return f"{max(0.0, seconds) / 3600:.1f} h"
