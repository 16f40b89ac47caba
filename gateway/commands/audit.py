"""florin audit …"""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from gateway.commands.client import Json, segment
from gateway.commands.output import facts, note, print_json, show, table, when
from gateway.commands.session import Session, command

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
    asked: Json = {
        "subject": subject,
        "actor": actor,
        "action": action,
        "since": since,
        "until": until,
        "limit": limit,
        "cursor": cursor,
    }
    body = session.api.get("/admin/v1/audit", asked)
    if follow:
        _follow(session, asked, body)
    else:
        session.result(body, _entries)


@command(app, "request")
def request(
    session: Session, request_id: Annotated[str, typer.Argument(help="The x-request-id of the response.")]
) -> None:
    """Show which version on which engine answered a request, attempt by attempt, or why it was refused.

    Example: florin audit request req-0f3c9a1b2d4e5f6071829304
    """
    session.result(session.api.get(f"/admin/v1/audit/requests/{segment(request_id)}"), _attempts)


_UNKNOWN = (
    "The ledger has no attempt of this request. Records arrive a second or two after the response. A request "
    "that was refused without a valid key is in the gateway's log only, if it has access lines."
)
_REFUSED = "It was refused before it reached an engine."


def _error(error: Json) -> list[tuple[str, str]]:
    from gateway.errors import CODES  # it brings the gateway's modules, which other commands do without

    known = CODES.get(error["code"])
    return [
        ("error", error["code"]),
        ("status", str(error["status"])),
        ("at", when(error["at"])),
        ("tenant", error["tenant"]),
        ("key", error["key"]),
        ("adapter", error["adapter"]),
        ("remedy", known.remedy if known else ""),
    ]


def _entries(body: Json) -> None:
    if not body["data"]:
        note("No matching entries.")
    show(table(_COLUMNS, [_row(entry) for entry in body["data"]]))
    if body["next"]:
        note(f"More entries: --cursor {body['next']}")
    if not body["complete"]:
        note("Redis is unavailable; the most recent entries may be missing.")


def _follow(session: Session, asked: Json, body: Json) -> None:
    """Polls for entries since the last one; known ids are skipped, so that none is shown twice."""
    seen: set[str] = set()
    try:
        while True:
            new = [entry for entry in reversed(body["data"]) if entry["id"] not in seen]
            if new:
                _print_followed(session, new)
                asked = asked | {"since": new[-1]["at"], "cursor": None, "limit": 1000}
                seen = {entry["id"] for entry in body["data"]}
            time.sleep(_LOOK_SECONDS)
            body = session.api.get("/admin/v1/audit", asked)
    except KeyboardInterrupt:
        return


def _print_followed(session: Session, entries: list[Json]) -> None:
    if session.json:
        for entry in entries:
            print_json(entry)
    else:
        show(table(_COLUMNS, [_row(entry) for entry in entries]))


def _row(entry: Json) -> tuple[str, ...]:
    details = json.dumps(entry["details"], ensure_ascii=False, sort_keys=True) if entry["details"] else ""
    if len(details) > _DETAILS_SHOWN:
        details = details[: _DETAILS_SHOWN - 1] + "…"
    return entry["at"], _who(entry), entry["action"], entry["subject"], entry["version"], details


def _who(entry: Json) -> str:
    """`key:ab12 (operator)`, `key:ab12 (acme, tenant, revoked)`."""
    key = entry["actor_key"]
    if key is None:
        return str(entry["actor"])
    told = [key["tenant"], key["role"], "revoked" if key["revoked"] else ""]
    return f"{entry['actor']} ({', '.join(filter(None, told))})"


def _attempts(body: Json) -> None:
    if error := body.get("error"):  # older gateways do not tell it
        show(facts([(name, shown) for name, shown in _error(error)]))
    if not body["attempts"]:
        note(_REFUSED if error else _UNKNOWN)
        return
    rows = [
        (
            a["attempt"],
            a["tenant"],
            f"{a['adapter']}@{a['version']}" if a["adapter"] else a["base_model"],
            a["engine"],
            a["gpu_type"],
            a["outcome"],
            a["dispatched"],
            a["ended"],
            a["prompt_tokens"],
            a["completion_tokens"],
            a["usage_source"],
        )
        for a in body["attempts"]
    ]
    columns = (
        "attempt", "tenant", "version", "engine", "gpu", "outcome", "sent", "ended", "prompt", "completion",
        "counts",
    )  # fmt: skip  # one name a line says no more
    show(table(columns, rows, right=("attempt", "prompt", "completion")))
    if not body["complete"]:
        note("More records may still arrive in the ledger; try again in a second.")
