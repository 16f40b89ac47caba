"""One request: each attempt, why there, times, tokens and cost."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.pages.requests.attempts import Cost, attempts, cost, decisions
from gateway.console.pages.requests.recent import remedy
from gateway.console.visit import ALL, Route, Visit
from gateway.tenants.directory import Role

_LONGEST: Final = 200
_PATIENCE: Final = 20.0
"""Seconds that the tile waits for the cost."""


async def request(visit: Visit) -> Response:
    request_id = visit.params["request_id"][:_LONGEST]
    path = quote(request_id, safe="")
    usage, decided = await asyncio.gather(
        known(visit, f"/finance/v1/usage/{path}"),
        known(visit, f"/admin/v1/explain/{path}") if visit.role is Role.OPERATOR else _nothing(),
    )
    records = usage["data"] if usage else []
    why = decisions(decided["data"] if decided else ())
    error = await _error(visit, records, request_id)
    if not records and not why and error is None:
        text = (
            f"No request {request_id[:100]!r} is known here. Usage arrives a second or two after the "
            "response. What was refused before it reached an engine is among the last errors on its "
            "tenant's page."
        )
        raise ApiError(404, "not_found", text)
    made = attempts(records, why)
    return visit.page(
        "request.html.j2",
        request_id=request_id,
        attempts=made,
        records=records,
        only_decided=[d for number, d in sorted(why.items()) if number not in {a.number for a in made}],
        costed=any(record["billable"] for record in records),
        error=error,
        cli=shlex.join(("florin", "audit", "request", request_id)),
    )


async def known(visit: Visit, path: str) -> Any:
    """What the API says; None: it knows nothing of it. Raises ApiError."""
    try:
        return await visit.api.get(path)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


async def _nothing() -> None:
    return None


async def tile(visit: Visit) -> Response:
    """The part of the page that asks the ledger, which may take a second."""
    return visit.page("request_cost.html.j2", cost=await _cost(visit))


async def _cost(visit: Visit) -> Cost:
    path = f"/finance/v1/usage/{quote(visit.params['request_id'][:_LONGEST], safe='')}/cost"
    try:
        async with asyncio.timeout(_PATIENCE):
            return cost(await visit.api.get(path))
    except TimeoutError:
        return Cost("Cost", None, "", "the ledger is busy; look again in a moment")
    except ApiError as error:
        return Cost("Cost", None, "", error.message)


async def _error(visit: Visit, records: list[dict[str, Any]], request_id: str) -> dict[str, Any] | None:
    """The error that its client got, if it is among its tenant's last. One that was refused before it reached
    an engine has no record; then an operator's link says whose it is."""
    name = records[-1]["tenant"] if records else visit.query.get("tenant", "")
    if visit.tenant is not None:
        tenant = await known(visit, "/admin/v1/account")
    elif visit.role is Role.OPERATOR and name:
        tenant = await known(visit, f"/admin/v1/tenants/{quote(name, safe='')}")
    else:
        return None
    found = [e for e in (tenant or {}).get("errors", ()) if e.get("request_id") == request_id]
    return found[0] | {"remedy": remedy(found[0]["code"])} if found else None


ROUTES = (
    Route("/requests/{request_id}", request, ALL),
    Route("/requests/{request_id}/cost", tile, ALL),
)
