"""What the gateway is set to, and what it is made of."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response

from gateway.console.api_client import maybe
from gateway.console.tables import Cell, Column
from gateway.console.visit import OPERATORS, Entry, Route, Visit
from gateway.fleet.engines.schemas.engines import ServedBase
from gateway.installation.schemas import Registry, Setting, Settings
from gateway.schemas.base import Listed

_TONES: Final = {"environment": "info", "florin.yaml": "info"}
_WHICH: Final = {"changed": "Set here", "all": "All", "reloadable": "Reloadable"}
_COLUMNS: Final = [
    Column("name", "Setting", lambda s: Cell(s.name, note=s.description)),
    Column("value", "Value", lambda s: Cell(value(s), tone=""), "code"),
    Column("default", "Default", lambda s: text(s.default), "code"),
    Column("source", "From", lambda s: Cell(s.source, tone=_TONES.get(s.source, "")), "badge"),
    Column("reloadable", "Reload", lambda s: "SIGHUP" if s.reloadable else "restart"),
    Column("group", "Group", lambda s: s.group),
]


async def show(visit: Visit) -> Response:
    settings, bases, (registry, lost) = await asyncio.gather(
        visit.api.get("/admin/v1/settings", Settings),
        visit.api.get("/admin/v1/bases", Listed[ServedBase]),
        maybe(visit.api.get("/admin/v1/registry", Registry)),
    )
    which = visit.query.get("show", "changed")
    if which not in _WHICH:
        which = "changed"
    rows = [setting for setting in settings.data if _shown(setting, which)]
    table = visit.table(_COLUMNS, rows, size=100)
    return visit.export(table, "settings") or visit.page(
        "settings.html.j2",
        table=table,
        which=which,
        tabs=_WHICH,
        versions=settings.versions,
        certificates=settings.certificates,
        bases=bases.data,
        registry=registry,
        lost=lost,
    )


def value(setting: Setting) -> str | None:
    """As `florin.yaml` would have it. Of a secret, only whether it is set."""
    if setting.secret:
        return "set (not shown)" if setting.set else None
    return text(setting.value)


def text(plain: Any) -> str | None:
    if plain in (None, ""):
        return None
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def _shown(setting: Setting, which: str) -> bool:
    if which == "changed":
        return setting.source != "default"
    return which == "all" or setting.reloadable


ROUTES = (Route("/settings", show, OPERATORS),)
ENTRIES = (Entry("Settings", "/settings", OPERATORS, "settings"),)
