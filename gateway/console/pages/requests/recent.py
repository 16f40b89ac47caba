"""The latest requests, newest first, from the usage records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, urlencode

from starlette.responses import Response

from gateway.console import formats
from gateway.console.api_client import ApiError
from gateway.console.pages.requests.attempts import FAILED, OUTCOMES
from gateway.console.tables import Cell, Column
from gateway.console.visit import ALL, Route, Visit
from gateway.costs.reports.schemas.usage import UsagePage
from gateway.errors import CODES
from gateway.schemas.base import Answer
from gateway.schemas.finance import UsageRecord
from gateway.tenants.directory import Role
from gateway.tenants.schemas.tenants import RequestError
from gateway.units import HOUR

_FETCHED: Final = 200
_ERRORS: Final = 20
_WINDOWS: Final = {"1": "Last hour", "24": "Last 24 hours", "168": "Last 7 days", "744": "Last 31 days"}
_STATUSES: Final = (
    ("", "All outcomes"),
    ("failed", "Everything that failed"),
    *((outcome, word.capitalize()) for outcome, (_, word, _) in OUTCOMES.items()),
)


def _id(r: UsageRecord) -> Cell:
    note = f"attempt {r.attempt}" if r.attempt > 1 else ""
    return Cell(r.request_id, href=f"/console/requests/{quote(r.request_id, safe='')}", note=note)


def _version(r: UsageRecord) -> Cell:
    if not r.adapter:
        return Cell(r.base_model)
    return Cell(f"{r.adapter}@{r.version}", href=f"/console/adapters/{quote(r.adapter)}")


def _outcome(r: UsageRecord) -> Cell:
    tone, word, _ = OUTCOMES.get(r.outcome, ("", r.outcome, ""))
    return Cell(r.outcome, tone=tone, text=word)


def _first(r: UsageRecord) -> float | None:
    return None if r.first_token is None else (r.first_token - r.dispatched) / 1e6


class ShownError(RequestError):
    tenant: str = ""
    """Empty in a tenant's own list."""

    @property
    def cause(self) -> str:
        return CODES[self.code].cause if self.code in CODES else ""

    @property
    def remedy(self) -> str:
        return CODES[self.code].remedy if self.code in CODES else ""


class LastErrors(Answer):
    """A tenant, of which only that is read."""

    errors: tuple[ShownError, ...]


_COLUMNS = [
    Column("request_id", "Request", _id),
    Column("ended", "Ended", lambda r: r.ended, "time"),
    Column("tenant", "Tenant", lambda r: Cell(r.tenant, href=f"/console/tenants/{r.tenant}")),
    Column("version", "Answered by", _version),
    Column("engine", "Engine", lambda r: Cell(r.engine, href=f"/console/fleet/{r.engine}")),
    Column("outcome", "Outcome", _outcome, "badge"),
    Column("prompt_tokens", "Prompt", lambda r: r.prompt_tokens, "number", "Tokens"),
    Column("completion_tokens", "Output", lambda r: r.completion_tokens, "number", "Tokens"),
    Column("first_token", "First token", _first, "seconds", "From the engine's start to the first token"),
    Column("seconds", "Took", lambda r: (r.ended - r.dispatched) / 1e6, "seconds"),
]


async def recent(visit: Visit) -> Response:
    query = visit.query
    given = query.get("request", "").strip()
    if given:
        return visit.see(f"/console/requests/{quote(given, safe='')}")
    window = query.get("hours", "24") if query.get("hours", "24") in _WINDOWS else "24"
    outcome = query.get("outcome", "")
    usage, errors = await asyncio.gather(
        visit.api.get(
            "/finance/v1/usage",
            UsagePage,
            order="newest",
            limit=_FETCHED,
            after=query.get("after"),
            tenant=query.get("tenant", "").strip(),
            adapter=query.get("adapter", "").strip(),
            outcome=list(FAILED) if outcome == "failed" else outcome,
            **{"from": formats.iso(visit.now - int(window) * HOUR)},
        ),
        _errors(visit),
    )
    table = visit.table(columns_for(visit), usage.data)
    export = visit.export(table, "requests")
    return export or visit.page(
        "requests.html.j2",
        table=table,
        errors=errors,
        older=_older(visit, usage.next),
        paged=bool(query.get("after")),
        windows=list(_WINDOWS.items()),
        statuses=_STATUSES,
        filters={name: query.get(name, "") for name in ("tenant", "adapter", "outcome")} | {"hours": window},
        complete=usage.complete,
        reasons=usage.reasons,
        missing=usage.missing,
    )


def columns_for(visit: Visit) -> list[Column]:
    """A tenant sees neither engines nor other tenants; an analyst has no page of an engine."""
    hidden = {"tenant", "engine"} if visit.tenant else set()
    shown = [column for column in _COLUMNS if column.name not in hidden]
    if visit.role is not Role.OPERATOR:
        plain = {
            "tenant": Column("tenant", "Tenant", lambda r: r.tenant),
            "engine": Column("engine", "Engine", lambda r: r.engine),
        }
        shown = [plain.get(column.name, column) for column in shown]
    return shown


def _older(visit: Visit, after: str | None) -> str:
    if after is None:
        return ""
    kept = {k: v for k, v in visit.query.items() if k not in {"after", "page", "format"}}
    return f"/console/requests?{urlencode(kept | {'after': after})}"


async def _errors(visit: Visit) -> Sequence[ShownError] | None:
    """The last errors of one tenant's requests, refused ones included; None: nobody asked, or may."""
    tenant = visit.query.get("tenant", "").strip()
    if visit.tenant is None and not (visit.role is Role.OPERATOR and tenant):
        return None
    try:
        return (await last_errors(visit, tenant))[:_ERRORS]
    except ApiError:
        return None


async def last_errors(visit: Visit, tenant: str) -> Sequence[ShownError]:
    """Those of the visitor's own tenant, or as an operator of `tenant`. Raises ApiError."""
    path = "/admin/v1/account" if visit.tenant else f"/admin/v1/tenants/{quote(tenant, safe='')}"
    return (await visit.api.get(path, LastErrors)).errors


ROUTES = (Route("/requests", recent, ALL),)
