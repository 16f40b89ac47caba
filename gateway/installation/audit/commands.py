"""florin audit …"""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from gateway.commands.client import Json, segment
from gateway.commands.output import facts, note, print_json, show, table, when
from gateway.commands.session import Session, command
from gateway.installation.audit.schemas import AuditEntry, AuditPage, RequestAttempts, TenantError

app = typer.Typer()

_LOOK_SECONDS = 1.0
_COLUMNS = ("at", "who", "action", "subject", "version", "details")
_DETAILS_SHOWN = 160

_LIKE = " `x*` matches a prefix."


@command(app, "list")
def list_(
    session: Session,
    *,
    subject: Annotated[str | None, typer.Option(help="acme/support, a1, …" + _LIKE)] = None,
    actor: Annotated[str | None, typer.Option(help="key:ID, bootstrap, reconciler." + _LIKE)] = None,
    action: Annotated[str | None, typer.Option(help="adapter.promote, …" + _LIKE)] = None,
    since: Annotated[str | None, typer.Option(help="Start, ISO 8601, UTC; inclusive.")] = None,
    until: Annotated[str | None, typer.Option(help="End, ISO 8601, UTC; exclusive.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of entries.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="`next` of the previous page.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep showing new entries, oldest first, until Ctrl-C.")
    ] = False,
) -> None:
    """List audit entries, newest first.

    Example: florin audit list --subject 'acme/*' --since 2026-11-01
    """
    filters: Json = {
        "subject": subject,
        "actor": actor,
        "action": action,
        "since": since,
        "until": until,
        "limit": limit,
        "cursor": cursor,
    }
    page = session.api.get("/admin/v1/audit", AuditPage, filters)
    if follow:
        _follow(session, filters, page)
    else:
        session.result(page, _entries)


@command(app, "request")
def request(
    session: Session, request_id: Annotated[str, typer.Argument(help="The x-request-id of the response.")]
) -> None:
    """Show which version on which engine answered a request, attempt by attempt, or why it was refused.

    Example: florin audit request req-01a1ff34133d0f3c9a1b2d4e5f60
    """
    path = f"/admin/v1/audit/requests/{segment(request_id)}"
    session.result(session.api.get(path, RequestAttempts), _attempts)


_UNKNOWN = (
    "The ledger has no attempt of this request. Records arrive a second or two after the response. A request "
    "that was refused without a valid key is in the gateway's log only, if it has access lines."
)
_REFUSED = "It was refused before it reached an engine."


def _error(error: TenantError) -> list[tuple[str, str]]:
    from gateway.errors import CODES  # it brings the gateway's modules, which other commands do without

    known = CODES.get(error.code)
    return [
        ("error", error.code),
        ("status", str(error.status)),
        ("at", when(error.failed_at)),
        ("tenant", error.tenant),
        ("key", error.key),
        ("adapter", error.adapter),
        ("remedy", known.remedy if known else ""),
    ]


def _entries(page: AuditPage) -> None:
    if not page.data:
        note("No matching entries.")
    show(table(_COLUMNS, [_row(entry) for entry in page.data]))
    if page.next:
        note(f"More entries: --cursor {page.next}")
    if not page.complete:
        note("Redis is unavailable; the most recent entries may be missing.")


def _follow(session: Session, filters: Json, page: AuditPage) -> None:
    """Polls for entries since the last one; known ids are skipped, so that none is shown twice."""
    seen: set[str] = set()
    try:
        while True:
            new = [entry for entry in reversed(page.data) if entry.id not in seen]
            if new:
                _print_followed(session, new)
                filters = filters | {"since": new[-1].recorded_at, "cursor": None, "limit": 1000}
                seen = {entry.id for entry in page.data}
            time.sleep(_LOOK_SECONDS)
            page = session.api.get("/admin/v1/audit", AuditPage, filters)
    except KeyboardInterrupt:
        return


def _print_followed(session: Session, entries: list[AuditEntry]) -> None:
    if session.json:
        for entry in entries:
            print_json(entry.model_dump(mode="json"))
    else:
        show(table(_COLUMNS, [_row(entry) for entry in entries]))


def _row(entry: AuditEntry) -> tuple[str, ...]:
    details = json.dumps(entry.details, ensure_ascii=False, sort_keys=True) if entry.details else ""
    if len(details) > _DETAILS_SHOWN:
        details = details[: _DETAILS_SHOWN - 1] + "…"
    return entry.recorded_at, _who(entry), entry.action, entry.subject, entry.version, details


def _who(entry: AuditEntry) -> str:
    """`key:ab12 (operator)`, `key:ab12 (acme, tenant, revoked)`."""
    key = entry.actor_key
    if key is None:
        return entry.actor
    facts = [key.tenant, key.role, "revoked" if key.revoked else ""]
    return f"{entry.actor} ({', '.join(filter(None, facts))})"


def _attempts(request: RequestAttempts) -> None:
    if request.error:
        show(facts(_error(request.error)))
    if not request.attempts:
        note(_REFUSED if request.error else _UNKNOWN)
        return
    rows = [
        (
            attempt.attempt,
            attempt.tenant,
            f"{attempt.adapter}@{attempt.version}" if attempt.adapter else attempt.base_model,
            attempt.engine,
            attempt.gpu_type,
            attempt.outcome,
            attempt.dispatched,
            attempt.ended,
            attempt.prompt_tokens,
            attempt.completion_tokens,
            attempt.usage_source,
        )
        for attempt in request.attempts
    ]
    columns = (
        "attempt", "tenant", "version", "engine", "gpu", "outcome", "sent", "ended", "prompt", "completion",
        "counts",
    )  # fmt: skip  # one name a line says no more
    show(table(columns, rows, right=("attempt", "prompt", "completion")))
    if not request.complete:
        note("More records may still arrive in the ledger; try again in a second.")
