"""The fleet: engines and what is placed on them."""

from __future__ import annotations

from starlette.responses import Response

from gateway.console.tables import Cell, Column
from gateway.console.visit import OPERATORS, Entry, Route, Visit

_TONES = {"active": "good", "cordoned": "warn", "draining": "warn", "drained": "info"}
_COLUMNS = [
    Column("name", "Engine", lambda e: Cell(e["name"], href=f"/console/fleet/{e['name']}")),
    Column("state", "State", lambda e: Cell(e["state"], tone=_TONES.get(e["state"], "")), "badge"),
    Column("gpu_type", "GPU", lambda e: e["gpu_type"]),
    Column("slots", "Slots", lambda e: e["slots"], "number"),
]


async def fleet(visit: Visit) -> Response:
    engines = (await visit.api.get("/admin/v1/engines"))["data"]
    table = visit.table(_COLUMNS, engines, sort="name")
    return visit.export(table, "engines") or visit.page("fleet.html.j2", table=table)


ROUTES = (Route("/fleet", fleet, OPERATORS),)
ENTRIES = (Entry("Fleet", "/fleet", OPERATORS, "fleet"),)
