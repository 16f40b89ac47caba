"""The audit log: who did what to what, and when."""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import orjson
from starlette.responses import Response

from gateway.console.formats import exact
from gateway.console.tables import Cell, Column
from gateway.console.visit import AUDIT, Entry, Route, Visit
from gateway.installation.audit.schemas import AuditEntry, AuditPage

Json = dict[str, Any]
_API: Final = "/admin/v1/audit"
_PAGE: Final = 100
_EXPORTED: Final = 10_000
_FILTERS: Final = ("subject", "actor", "action", "since", "until")
_KINDS: Final = ("tenant", "key", "adapter", "version", "engine", "price", "period", "bill")
_PLACES: Final = {
    "tenant": "/console/tenants/",
    "key": "/console/keys/",
    "adapter": "/console/adapters/",
    "version": "/console/adapters/",
    "engine": "/console/fleet/",
}
_LONG: Final = 80
_MICROS: Final = 10**15
"""Larger numbers are times."""
_DIGEST: Final = re.compile(r"[0-9a-f]{40,64}")


async def audit(visit: Visit) -> Response:
    filters = {name: visit.query.get(name, "").strip() for name in _FILTERS}
    if "format" in visit.query:
        table = visit.table(_COLUMNS, await _all(visit, filters))
        if (export := visit.export(table, "audit")) is not None:
            return export
    cursor = visit.query.get("cursor")
    page = await visit.api.get(_API, AuditPage, **filters, limit=_PAGE, cursor=cursor)
    table = visit.table(_COLUMNS, page.data, size=_PAGE)
    given = {name: value for name, value in filters.items() if value}
    return visit.page(
        "audit.html.j2",
        table=table,
        filters=filters,
        given=given,
        kinds=_KINDS,
        complete=page.complete,
        older=f"?{urlencode(given | {'cursor': page.next})}" if page.next else "",
        newest=f"?{urlencode(given)}" if cursor else "",
        command=" ".join(["florin audit list", *(f"--{n} {shlex.quote(v)}" for n, v in given.items())]),
    )


async def _all(visit: Visit, filters: Json) -> list[AuditEntry]:
    """Every matching entry, up to ten thousand."""
    entries: list[AuditEntry] = []
    cursor = None
    while len(entries) < _EXPORTED:
        page = await visit.api.get(_API, AuditPage, **filters, limit=1000, cursor=cursor)
        entries += page.data
        cursor = page.next
        if cursor is None:
            break
    return entries


def href(entry: AuditEntry) -> str:
    """The page of what an entry is about; empty: it has none."""
    kind = entry.action.partition(".")[0]
    place = _PLACES.get(kind, "")
    subject = entry.subject.partition("@")[0]
    if not place or not subject or entry.action.endswith(".remove"):
        return ""
    return place + quote(subject, safe="/" if kind in {"adapter", "version"} else "")


def in_words(details: Json) -> str:
    """`limits.concurrent: 4 → 8; label: checkout`."""
    shown = {name: value for name, value in details.items() if value not in ("", None)}
    return "; ".join(f"{name}: {_value(value)}" for name, value in shown.items())


def _value(value: Any) -> str:
    if isinstance(value, dict) and "new" in value and value.keys() <= {"old", "new"}:
        new = _value(value["new"])
        return f"{_value(value['old'])} → {new}" if "old" in value else new
    if isinstance(value, int) and value > _MICROS:
        return exact(value)
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value[:12]
    text = "none" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"


def _subject(entry: AuditEntry) -> str:
    return f"{entry.subject}@{entry.version}" if entry.version else entry.subject


def _who(entry: AuditEntry) -> Cell:
    key, actor = entry.actor_key, entry.actor
    if key is None:
        return Cell(actor)
    about = ", ".join(filter(None, (key.tenant, key.role, "revoked" if key.revoked else "")))
    return Cell(actor, href=f"/console/keys/{quote(actor.removeprefix('key:'), safe='')}", note=about)


def _micros(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * 1_000_000)


_COLUMNS: Final = [
    Column("recorded_at", "When", lambda e: _micros(e.recorded_at), "time"),
    Column("actor", "Who", _who),
    Column("action", "What", lambda e: e.action, "code"),
    Column("subject", "To what", lambda e: Cell(_subject(e) or None, href=href(e))),
    Column("details", "Details", lambda e: Cell(in_words(e.details) or None)),
]

ROUTES = (Route("/audit", audit, AUDIT),)
ENTRIES = (Entry("Audit", "/audit", AUDIT, "audit"),)
