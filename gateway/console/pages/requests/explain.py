"""Where a request for an adapter would go now, and why."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.pages.fleet.rows import HEALTH_TONES
from gateway.console.tables import Cell, Column
from gateway.console.visit import OPERATORS, Route, Visit

Json = dict[str, Any]

_COLUMNS = [
    Column("engine", "Engine", lambda c: Cell(c["engine"], href=f"/console/fleet/{c['engine']}")),
    Column("health", "Health", lambda c: Cell(c["health"], tone=HEALTH_TONES.get(c["health"], "")), "badge"),
    Column("action", "Would", lambda c: c["action"] if c["eligible"] else "not serve it"),
    Column("cost_ms", "Expected delay (ms)", lambda c: c["cost_ms"], "number"),
    Column("terms", "Made of (ms)", lambda c: terms(c["terms"])),
    Column("reason", "Because", lambda c: c["reason"]),
]


def terms(found: Json) -> str:
    return ", ".join(f"{name} {ms:,.0f}" for name, ms in found.items() if ms)


async def explain(visit: Visit) -> Response:
    adapter = visit.query.get("adapter", "").strip()
    if not adapter:
        return visit.page("explain.html.j2", adapter="", told=None, table=None)
    tenant, slash, name = adapter.partition("@")[0].partition("/")
    if not slash or not tenant or not name:
        raise ApiError(400, "invalid_value", "An adapter's full name looks like acme/support.", "adapter")
    told = await visit.api.get(f"/admin/v1/explain/{quote(tenant, safe='')}/{quote(name, safe='')}")
    table = visit.table(_COLUMNS, told["decision"]["candidates"])
    return visit.export(table, "explain") or visit.page(
        "explain.html.j2", adapter=adapter, told=told, table=table
    )


ROUTES = (Route("/explain", explain, OPERATORS),)
