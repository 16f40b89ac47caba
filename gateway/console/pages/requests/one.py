"""One request: each attempt, why there, times, tokens and cost; and where one would go now."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.api_client import ApiError, nothing
from gateway.console.pages.fleet.rows import HEALTH_TONES
from gateway.console.pages.requests.attempts import Cost, DecidedAttempts, attempts, cost
from gateway.console.pages.requests.recent import ShownError, last_errors
from gateway.console.tables import Cell, Column
from gateway.console.visit import ALL, OPERATORS, Route, Visit
from gateway.costs.reports.schemas.usage import RequestCost, RequestUsage
from gateway.fleet.placement.schemas import Explanation
from gateway.schemas.base import Answer
from gateway.schemas.finance import UsageRecord
from gateway.tenants.directory import Role

A = TypeVar("A", bound=Answer)

_LONGEST: Final = 200
_PATIENCE: Final = 20.0
"""Seconds that the tile waits for the cost."""
_LIMITED: Final = frozenset(
    {"rate_limit_exceeded", "concurrency_limit_exceeded", "budget_exhausted", "credits_exhausted"}
)


class EndedRequest(Answer):
    """What the audit says of a request, of which only that is read."""

    error: ShownError | None = None


async def request(visit: Visit) -> Response:
    request_id = visit.params["request_id"][:_LONGEST]
    path = quote(request_id, safe="")
    usage, decided = await asyncio.gather(
        known(visit, f"/finance/v1/usage/{path}", RequestUsage),
        known(visit, f"/admin/v1/explain/{path}", DecidedAttempts)
        if visit.role is Role.OPERATOR
        else nothing(),
    )
    records = usage.data if usage else ()
    decisions = decided.by_attempt if decided else {}
    error = await _error(visit, records, request_id)
    cli = shlex.join(("florin", "audit", "request", request_id))
    if not records and not decisions and error is None:
        quoted = shlex.quote(request_id)
        return visit.page(
            "request_unknown.html.j2", status=404, request_id=request_id, quoted=quoted, cli=cli
        )
    shown = attempts(records, decisions)
    recorded = {attempt.number for attempt in shown}
    return visit.page(
        "request.html.j2",
        request_id=request_id,
        attempts=shown,
        records=records,
        only_decided=[d for number, d in sorted(decisions.items()) if number not in recorded],
        costed=any(record.billable for record in records),
        error=error,
        step=next_step(error, visit.tenant) if error else None,
        cli=cli,
    )


async def known(visit: Visit, path: str, answer: type[A]) -> A | None:
    """What the API says; None: it knows nothing of it. Raises ApiError."""
    try:
        return await visit.api.get(path, answer)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


async def tile(visit: Visit) -> Response:
    """The part of the page that asks the ledger, which may take a second."""
    return visit.page("request_cost.html.j2", cost=await _cost(visit))


async def _cost(visit: Visit) -> Cost:
    path = f"/finance/v1/usage/{quote(visit.params['request_id'][:_LONGEST], safe='')}/cost"
    try:
        async with asyncio.timeout(_PATIENCE):
            return cost(await visit.api.get(path, RequestCost))
    except TimeoutError:
        return Cost("Cost", None, "", "the ledger is busy; look again in a moment")
    except ApiError as error:
        if error.status in {403, 404}:  # another's request
            raise
        return Cost("Cost", None, "", error.message)


async def _error(visit: Visit, records: Sequence[UsageRecord], request_id: str) -> ShownError | None:
    """The error that its client got, if it is among its tenant's last. One that was refused before it reached
    an engine has nothing else."""
    if visit.tenant is None and visit.role is not Role.OPERATOR:
        return None
    if visit.tenant is None and not records:
        path = f"/admin/v1/audit/requests/{quote(request_id, safe='')}"
        return (await visit.api.get(path, EndedRequest)).error
    tenant = "" if visit.tenant else records[-1].tenant
    try:
        errors = await last_errors(visit, tenant)
    except ApiError as error:
        if error.status != 404:  # the tenant was removed
            raise
        return None
    own = (error for error in errors if error.request_id == request_id)
    return next((error.model_copy(update={"tenant": tenant}) for error in own), None)


def next_step(error: ShownError, tenant: str | None) -> tuple[str, str] | None:
    """Text and address of the page on which an error's cause can be seen or changed; None: there is none.
    `tenant`: the visitor's own; None: an operator."""
    if error.code in _LIMITED:
        own, other = ("Your limits and budgets", "/console/account"), f"/console/tenants/{error.tenant}"
        return own if tenant else (f"Limits and budgets of {error.tenant}", other)
    if error.code == "model_not_found":
        own, other = ("Your adapters", "/console/adapters"), f"/console/adapters?tenant={error.tenant}"
        return own if tenant else (f"Adapters of {error.tenant}", other)
    return None


_COLUMNS = [
    Column("engine", "Engine", lambda c: Cell(c.engine, href=f"/console/fleet/{c.engine}")),
    Column("health", "Health", lambda c: Cell(c.health, tone=HEALTH_TONES.get(c.health, "")), "badge"),
    Column("action", "Would", lambda c: c.action if c.eligible else "not serve it"),
    Column("cost_ms", "Expected delay (ms)", lambda c: c.cost_ms, "number"),
    Column("terms", "Made of (ms)", lambda c: terms(c.terms)),
    Column("reason", "Because", lambda c: c.reason),
]


def terms(milliseconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {ms:,.0f}" for name, ms in milliseconds.items() if ms)


async def explain(visit: Visit) -> Response:
    adapter = visit.query.get("adapter", "").strip()
    if not adapter:
        return visit.page("explain.html.j2", adapter="", explanation=None, table=None)
    tenant, slash, name = adapter.partition("@")[0].partition("/")
    if not slash or not tenant or not name:
        raise ApiError(400, "invalid_value", "An adapter's full name looks like acme/support.", "adapter")
    path = f"/admin/v1/explain/{quote(tenant, safe='')}/{quote(name, safe='')}"
    explanation = await visit.api.get(path, Explanation)
    table = visit.table(_COLUMNS, list(explanation.decision.candidates))
    return visit.export(table, "explain") or visit.page(
        "explain.html.j2", adapter=adapter, explanation=explanation, table=table
    )


ROUTES = (
    Route("/requests/{request_id}", request, ALL),
    Route("/requests/{request_id}/cost", tile, ALL),
    Route("/explain", explain, OPERATORS),
)
