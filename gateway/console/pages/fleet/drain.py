"""The drain of an engine: its plan first, then its progress."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.pages.fleet.progress import PlanRow, progress
from gateway.console.pages.fleet.rows import idle
from gateway.console.tables import Cell, Column
from gateway.console.visit import OPERATORS, Route, Visit

_MOST_SECONDS: Final = 86_400
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
    name = visit.params["engine"]
    found = progress(await _status(visit))
    table = visit.table(_COLUMNS, list(found.plan))
    return visit.export(table, f"drain-of-{name}") or visit.page(
        "fleet_drain.html.j2", name=name, drain=found, table=table
    )


async def live(visit: Visit) -> Response:
    async def draw() -> str:
        found = progress(await _status(visit))
        return visit.renderer.render(
            "fleet_drain_live.html.j2", visit=visit, name=visit.params["engine"], drain=found
        )

    return await visit.live(draw)


async def start(visit: Visit) -> Response:
    name, text = visit.params["engine"], visit.text("timeout")
    if not text.isascii() or not text.isdigit() or int(text[:9]) > _MOST_SECONDS:
        raise ApiError(
            400, "invalid_value", f"Timeout: a number of seconds up to {_MOST_SECONDS:,}.", "timeout"
        )
    body = {"timeout": int(text), "release": not visit.text("keep")}
    await visit.api.post(f"/admin/v1/engines/{name}/drain", body)
    return visit.see(f"/console/fleet/{name}/drain", f"The drain of {name} has begun.")


async def _status(visit: Visit) -> Any:
    return await visit.api.get(f"/admin/v1/engines/{visit.params['engine']}/drain")


_PATH = "/fleet/{engine}/drain"
ROUTES = (
    Route(_PATH, show, OPERATORS),
    Route(_PATH, start, OPERATORS, "POST"),
    Route(f"/live{_PATH}", live, OPERATORS),
)
