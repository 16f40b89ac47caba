"""All adapters, and the base models that they are trained on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from starlette.responses import Response

from gateway.console.api_client import nothing
from gateway.console.pages.adapters import rows
from gateway.console.pages.adapters.common import VISITORS, command
from gateway.console.tables import Cell, Column, TableView
from gateway.console.visit import MANAGERS, Entry, Route, Visit
from gateway.costs.adapter_costs.schemas import AdapterCostReport
from gateway.fleet.adapters.schemas.adapters import Adapter
from gateway.fleet.engines.schemas.engines import ServedBase
from gateway.fleet.placement.schemas import EnginePlacement
from gateway.schemas.base import Listed
from gateway.tenants.directory import Role


async def adapters(visit: Visit) -> Response:
    if visit.role is Role.TENANT:
        return await _models(visit)
    operator = visit.role is Role.OPERATOR
    costly = operator and visit.query.get("cost") == "month"
    listed, placed, costs = await asyncio.gather(
        visit.api.get("/admin/v1/adapters", Listed[Adapter]),
        visit.api.get("/admin/v1/placement", Listed[EnginePlacement]) if operator else _unplaced(),
        visit.api.get("/finance/v1/adapters", AdapterCostReport) if costly else nothing(),
    )
    every = list(listed.data)
    used = rows.last_used(placed.data, visit.now)
    by_name = {row.adapter: row for row in costs.rows} if costs else None
    columns = rows.columns(operator=operator, used=used, costs=by_name)
    # In a thread: of 10,000 adapters, it takes tenths of a second.
    listing = await asyncio.to_thread(_listing, visit, columns, every)
    tenant = visit.query.get("tenant", "")
    return listing.file or visit.page(
        "adapters.html.j2",
        table=listing.table,
        any=bool(every),
        tenants=listing.tenants,
        bases=listing.bases,
        shown=rows.SHOWN,
        costs=costs,
        cli=command("adapter", "list", *(("--tenant", tenant) if tenant else ())),
    )


class _Listing(NamedTuple):
    table: TableView
    file: Response | None
    """The table, if the URL asks for a file."""
    tenants: list[tuple[str, str]]
    bases: list[tuple[str, str]]


def _listing(visit: Visit, columns: list[Column], every: list[Adapter]) -> _Listing:
    table = visit.table(columns, rows.narrowed(every, visit.query), sort="adapter")
    return _Listing(
        table,
        visit.export(table, "adapters"),
        _options(map(rows.tenant_of, every), "All tenants"),
        _options((a.base_model for a in every), "All base models"),
    )


async def _unplaced() -> Listed[EnginePlacement]:
    return Listed(data=())


def _options(names: Iterable[str | None], every: str) -> list[tuple[str, str]]:
    return [("", every), *((name, name) for name in sorted({n for n in names if n}))]


_MODELS = [
    Column("model", "Model", lambda m: Cell(m["id"], href=m["href"])),
    Column("created", "Live since", lambda m: m["created"] * 1_000_000 or None, "time"),
    Column("owner", "Owner", lambda m: m["owned_by"]),
]


async def _models(visit: Visit) -> Response:
    """For a key that calls models and manages none: what it may call."""
    models = (await visit.models(visit.key).call("GET", "/v1/models")).json()["data"]
    known = [
        {**m, "href": f"/console/adapters/{m['id']}/try" if m["parent"] else ""}
        for m in models
        if "/" in m["id"] or not m["parent"]  # not the short names
    ]
    table = visit.table(_MODELS, known, sort="model")
    return visit.export(table, "models") or visit.page(
        "adapters_models.html.j2", table=table, any=bool(models)
    )


async def bases(visit: Visit) -> Response:
    """What to train for."""
    served = (await visit.api.get("/admin/v1/bases", Listed[ServedBase])).data
    columns = _BASES if visit.role is Role.OPERATOR else _BASES[:-1]
    table = visit.table(columns, list(served), sort="base_model")
    return visit.export(table, "bases") or visit.page("bases.html.j2", table=table, any=bool(served))


def _config(base: ServedBase, *names: str) -> Any:
    """The first of these that the model's configuration has, also where it has one per modality."""
    config = base.config or {}
    for part in (config, config.get("text_config") or {}):
        for name in names:
            if part.get(name) is not None:
                return part[name]
    return None


def _architecture(base: ServedBase) -> Cell:
    names = ", ".join(map(str, _config(base, "architectures") or []))
    return Cell(names or None, note="" if base.config else "Its configuration is unknown.")


def _template(base: ServedBase) -> Cell:
    if base.chat_template is None:
        return Cell("unknown")
    return Cell("yes", tone="good") if base.chat_template else Cell("no", note="Use /v1/completions.")


_BASES = [
    Column("base_model", "Base model", lambda b: Cell(b.base_model, note=", ".join(b.aliases))),
    Column("architecture", "Architecture", _architecture),
    Column("hidden", "Hidden size", lambda b: _config(b, "hidden_size"), "number"),
    Column("layers", "Layers", lambda b: _config(b, "num_hidden_layers", "n_layer"), "number"),
    Column(
        "rank",
        "Largest rank",
        lambda b: max(b.ranks, default=None),
        "number",
        "An adapter of a higher rank is refused",
    ),
    Column("chat", "Chat template", _template, "badge"),
    Column("adapters", "Engines", lambda b: ", ".join(b.engines)),
]

ROUTES = (
    Route("/adapters", adapters, VISITORS),
    Route("/bases", bases, MANAGERS),
)
ENTRIES = (Entry("Adapters", "/adapters", VISITORS, "adapter"),)
