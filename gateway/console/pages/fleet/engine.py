"""One engine: what it is, what it holds, what happened there, and what can be done with it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.pages.fleet.drain import DrainProgress
from gateway.console.pages.fleet.rows import EngineRow, Slots, Tile, engine_rows, feed, tiles
from gateway.console.tables import Cell, Column
from gateway.console.visit import OPERATORS, Route, Visit
from gateway.fleet.engines.schemas.engines import Engine, RestartingEngine, TrialDetails, TrustedEngine
from gateway.fleet.placement.schemas import PlacementChange
from gateway.installation.audit.schemas import AuditEntry, AuditPage
from gateway.schemas.base import Listed, Removed

_FEED: Final = 20
_EVENTS: Final = 20
_SLOT_TONES: Final = {"resident": "good", "loading": "info", "leaving": "warn", "lost": "bad"}
_COLUMNS = [
    Column("version", "Adapter version", lambda slot: Cell(slot.version, href=slot.href)),
    Column("state", "State", lambda slot: Cell(slot.state, tone=_SLOT_TONES.get(slot.state, "")), "badge"),
    Column("in_flight", "In flight", lambda slot: slot.in_flight, "number"),
    Column("used", "Used", lambda slot: slot.idle),
    Column("pinned", "Pinned", lambda slot: Cell(slot.pinned, text="pinned" if slot.pinned else "–")),  # noqa: RUF001
]
_DONE: Final = {
    "active": "takes adapters and requests again.",
    "cordoned": "takes no new adapters; those that it holds are still served.",
}


async def engine(visit: Visit) -> Response:
    name = visit.params["engine"]
    context, events = await asyncio.gather(
        _context(visit),
        visit.api.get("/admin/v1/audit", AuditPage, subject=name, limit=_EVENTS),
    )
    row: EngineRow = context["row"]
    table = visit.table(_COLUMNS, list(row.placed), size=100)
    return visit.export(table, f"engine-{name}") or visit.page(
        "fleet_engine.html.j2", table=table, events=[_event(e) for e in events.data], **context
    )


async def live(visit: Visit) -> Response:
    async def draw() -> str:
        context = await _context(visit)
        return visit.renderer.render("fleet_engine_live.html.j2", visit=visit, **context)

    return await visit.live(draw)


async def _context(visit: Visit) -> dict[str, Any]:
    """Raises ApiError: there is no such engine."""
    name = visit.params["engine"]
    path = f"/admin/v1/engines/{name}"
    engine, placement, changes = await asyncio.gather(
        visit.api.get(path, EngineRow),
        visit.api.get("/admin/v1/placement", Listed[Slots], engine=name),
        visit.api.get("/admin/v1/placement/changes", Listed[PlacementChange], engine=name, limit=500),
    )
    [row] = engine_rows([engine], placement.data)
    draining = row.drain or row.status == "draining"
    drain = await visit.api.get(f"{path}/drain", DrainProgress) if draining else None
    return {
        "row": row,
        "tiles": _tiles(row, changes.data, time.time_ns() // 1000),
        "feed": feed(changes.data, most=_FEED),
        "drain": drain,
        "comparison": await _comparison(visit, path) if row.status == "on trial" else None,
    }


async def _comparison(visit: Visit, path: str) -> TrialDetails | None:
    """None: its trial has ended just now."""
    with contextlib.suppress(ApiError):
        return await visit.api.get(f"{path}/trial", TrialDetails)
    return None


def _tiles(row: EngineRow, changes: Sequence[PlacementChange], now: int) -> list[Tile]:
    _, slots, in_flight, loads, _ = tiles([row], changes, now)
    kv = Tile("KV cache in use", "–" if row.kv_usage is None else f"{row.kv_usage * 100:.0f} %")  # noqa: RUF001
    health = Tile("Health", row.health, row.reason or "", row.health_tone)
    return [health, slots, in_flight, kv, loads]


def _event(entry: AuditEntry) -> dict[str, str]:
    details = ", ".join(f"{name}: {value}" for name, value in sorted(entry.details.items()))
    return {
        "recorded_at": entry.recorded_at,
        "actor": entry.actor,
        "action": entry.action,
        "details": details[:200],
    }


# -- actions


async def set_state(visit: Visit) -> Response:
    name, state = visit.params["engine"], visit.text("state")
    await visit.api.put(f"/admin/v1/engines/{name}/state", {"state": state}, Engine)
    return visit.see(f"/console/fleet/{name}", f"Engine {name} {_DONE.get(state, 'has a new state.')}")


async def restart(visit: Visit) -> Response:
    name = visit.params["engine"]
    await visit.api.post(f"/admin/v1/engines/{name}/restart", None, RestartingEngine)
    return visit.see(f"/console/fleet/{name}", f"Engine {name} is being restarted by its agent.")


async def trust(visit: Visit) -> Response:
    name = visit.params["engine"]
    trusted = await visit.api.post(f"/admin/v1/engines/{name}/trust", None, TrustedEngine)
    versions = f"Versions that get new references: {trusted.fingerprints_forgotten}."
    notice = f"Engine {name} is now the reference for {trusted.base}. {versions}"
    return visit.see(f"/console/fleet/{name}", notice)


async def remove(visit: Visit) -> Response:
    name = visit.params["engine"]
    if visit.text("confirm") != name:
        raise ApiError(400, "invalid_value", f"Type {name} to remove this engine.", "confirm")
    removed = (await visit.api.delete(f"/admin/v1/engines/{name}", Removed)).removed
    return visit.see(
        "/console/fleet", f"Engine {name} was removed." if removed else f"There was no engine {name}."
    )


_ONE = "/fleet/{engine}"
ROUTES = (
    Route(_ONE, engine, OPERATORS),
    Route(f"/live{_ONE}", live, OPERATORS),
    Route(f"{_ONE}/state", set_state, OPERATORS, "POST"),
    Route(f"{_ONE}/restart", restart, OPERATORS, "POST"),
    Route(f"{_ONE}/trust", trust, OPERATORS, "POST"),
    Route(f"{_ONE}/remove", remove, OPERATORS, "POST"),
)
