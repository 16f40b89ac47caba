"""The map of the fleet, live, and the same as a table."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from gateway.console import formats
from gateway.console.pages.fleet.rows import EngineRow, Slots, choices, engine_rows, feed, filtered, tiles
from gateway.console.tables import Cell, Column
from gateway.console.visit import OPERATORS, Route, Visit
from gateway.fleet.placement.schemas import PlacementChange
from gateway.schemas.base import Listed

_CARDS: Final = 12
"""More engines are shown as small cells, unless the visitor wants cards."""
_MOST_CARDS: Final = 24
_MANY: Final = 16
"""A live view of more engines is drawn every two seconds."""
_FEED: Final = 15
_COLUMNS = [
    Column("name", "Engine", lambda row: Cell(row.name, href=row.href, note=row.reason or "")),
    Column("state", "State", lambda row: Cell(row.status, tone=row.status_tone), "badge"),
    Column("gpu_type", "GPU", lambda row: Cell(row.gpu_type, text=row.gpus)),
    Column("health", "Health", lambda row: Cell(row.health, tone=row.health_tone), "badge"),
    Column("base", "Base model", lambda row: row.base),
    Column("slots", "Slots", lambda row: row.slots, "number"),
    Column("used", "In use", lambda row: len(row.held), "number", "Slots that hold an adapter"),
    Column("cached", "In CPU memory", lambda row: len(row.cached), "number"),
    Column("in_flight", "In flight", lambda row: row.in_flight, "number", "Requests of this gateway"),
    Column("running", "Running", lambda row: row.running, "number", "As the engine reports"),
    Column("waiting", "Waiting", lambda row: row.waiting, "number", "As the engine reports"),
    Column("kv_usage", "KV cache", lambda row: row.kv_usage, "percent"),
    Column("region", "Region", lambda row: row.region),
    Column("url", "URL", lambda row: row.url),
]


async def fleet(visit: Visit) -> Response:
    if visit.query.get("format") or visit.query.get("view") == "table":
        return await _table(visit)
    context = await _context(visit)
    live = "/console/live/fleet"
    if visit.request.url.query:
        live += f"?{visit.request.url.query}"
    return visit.page("fleet.html.j2", live=live, **_around(visit, context["all"]), **context)


async def live(visit: Visit) -> Response:
    """The changing part of the map."""
    first = await _context(visit)

    async def draw() -> str:
        context = await _context(visit)
        return visit.renderer.render("fleet_live.html.j2", visit=visit, **context)

    return await visit.live(draw, every=2.0 if len(first["all"]) > _MANY else 1.0)


async def _table(visit: Visit) -> Response:
    rows = await _rows(visit)
    shown = filtered(rows, {k: v for k, v in visit.query.items() if k != "q"})
    table = visit.table(_COLUMNS, shown, sort="name")
    return visit.export(table, "engines") or visit.page(
        "fleet_table.html.j2", table=table, all=rows, **_around(visit, rows)
    )


async def _rows(visit: Visit) -> list[EngineRow]:
    engines, placement = await asyncio.gather(
        visit.api.get("/admin/v1/engines", Listed[EngineRow]),
        visit.api.get("/admin/v1/placement", Listed[Slots]),
    )
    return engine_rows(engines.data, placement.data)


async def _context(visit: Visit) -> dict[str, Any]:
    rows, changes = await asyncio.gather(
        _rows(visit), visit.api.get("/admin/v1/placement/changes", Listed[PlacementChange], limit=500)
    )
    shown = filtered(rows, visit.query)
    named = {row.name for row in shown}
    of_shown = [change for change in changes.data if len(shown) == len(rows) or change.engine in named]
    view = visit.query.get("view", "")
    compact = view == "compact" or (view != "cards" and len(rows) > _CARDS)
    return {
        "all": rows,
        "rows": shown if compact else shown[:_MOST_CARDS],
        "tiles": tiles(shown, of_shown, time.time_ns() // 1000),
        "feed": feed(of_shown, most=_FEED),
        "compact": compact,
        "hidden": 0 if compact else max(0, len(shown) - _MOST_CARDS),
        "percent": formats.percent,
    }


def _around(visit: Visit, rows: list[EngineRow]) -> dict[str, Any]:
    """The filters, and the links to the other views."""
    kept = {name: visit.query[name] for name in ("base", "gpu", "state", "q") if visit.query.get(name)}

    def view(name: str) -> str:
        return f"/console/fleet?{urlencode(kept | {'view': name})}"

    return {
        "choices": choices(rows),
        "views": [
            ("cards", "Cards", view("cards")),
            ("compact", "Map", view("compact")),
            ("table", "Table", view("table")),
        ],
        "filters": {name: visit.query.get(name, "") for name in ("base", "gpu", "state", "q", "view")},
        "is_filtered": bool(kept),
    }


ROUTES = (Route("/fleet", fleet, OPERATORS), Route("/live/fleet", live, OPERATORS))
