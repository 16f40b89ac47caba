"""The drain of an engine: its plan first, then its progress."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from gateway.console.forms import body_of, fields_of
from gateway.console.pages.fleet.progress import DrainProgress, PlanRow
from gateway.console.pages.fleet.rows import idle
from gateway.console.tables import Cell, Column
from gateway.console.visit import OPERATORS, Route, Visit
from gateway.fleet.engines.schemas.engines import Drain, DrainOptions

_TONES: Final = {"move": "info", "elsewhere": "good", "stays": "warn"}
_WORDS: Final = {"move": "move", "elsewhere": "already elsewhere", "stays": "not moved"}


def _used(row: PlanRow) -> Cell:
    return Cell(row.idle_seconds, text=idle(row.idle_seconds))


_COLUMNS = [
    Column("version", "Adapter version", lambda row: Cell(row.version, href=row.href)),
    Column("kind", "Plan", lambda row: Cell(_WORDS[row.kind], tone=_TONES[row.kind]), "badge"),
    Column("what", "What happens", lambda row: row.what),
    Column("idle_seconds", "Used", _used, "seconds"),
    Column("in_flight", "In flight", lambda row: row.in_flight, "number"),
]


async def show(visit: Visit) -> Response:
    """The plan, or how far the drain is."""
    name, drain = visit.params["engine"], await _progress(visit)
    table = visit.table(_COLUMNS, list(drain.plan))
    return visit.export(table, f"drain-of-{name}") or visit.page(
        "fleet_drain.html.j2", name=name, drain=drain, table=table, fields=fields_of(DrainOptions)
    )


async def live(visit: Visit) -> Response:
    async def draw() -> str:
        return visit.renderer.render(
            "fleet_drain_live.html.j2",
            visit=visit,
            name=visit.params["engine"],
            drain=await _progress(visit),
        )

    return await visit.live(draw)


async def start(visit: Visit) -> Response:
    name = visit.params["engine"]
    await visit.api.post(f"/admin/v1/engines/{name}/drain", body_of(DrainOptions, visit.text), Drain)
    return visit.see(f"/console/fleet/{name}/drain", f"The drain of {name} has begun.")


async def _progress(visit: Visit) -> DrainProgress:
    return await visit.api.get(f"/admin/v1/engines/{visit.params['engine']}/drain", DrainProgress)


_PATH = "/fleet/{engine}/drain"
ROUTES = (
    Route(_PATH, show, OPERATORS),
    Route(_PATH, start, OPERATORS, "POST"),
    Route(f"/live{_PATH}", live, OPERATORS),
)
