"""Where a request for an adapter would go now, and why."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.pages.fleet.rows import HEALTH_TONES
from gateway.console.tables import Cell, Column
from gateway.console.visit import OPERATORS, Route, Visit
from gateway.fleet.placement.schemas import Explanation

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


ROUTES = (Route("/explain", explain, OPERATORS),)
