"""One adapter: its versions, its canary beside the live version, and the evidence on each version."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import RedirectResponse, Response

from gateway.console.api_client import ApiError
from gateway.console.pages.adapters import rows
from gateway.console.pages.adapters.common import VISITORS, adapter, command, full_name, page_of, tabs
from gateway.console.tables import view
from gateway.console.visit import MANAGERS, Route, Visit
from gateway.fleet.adapters.schemas.adapters import AdapterDetails
from gateway.fleet.placement.schemas import Explanation
from gateway.tenants.directory import Role

_EVERY = 2.0
"""Seconds between two looks of the live part."""


async def one(visit: Visit) -> Response:
    name = full_name(visit)
    if visit.role is Role.TENANT:
        return RedirectResponse(page_of(name, "try"), 303)
    details, context = await _now(visit)
    table = context["table"]
    return visit.export(table, name.replace("/", "-")) or visit.page(
        "adapter.html.j2",
        **context,
        live_url=f"/console/live/adapters/{name}" + (f"?{visit.request.url.query}" if visit.query else ""),
        tabs=tabs(visit, name),
        promotable=[v.version for v in details.version_details if v.state in {"ready", "canary"}],
        cli=command("adapter", "show", name),
    )


async def live(visit: Visit) -> Response:
    """What of the page moves."""

    async def draw() -> str:
        _, context = await _now(visit)
        return visit.renderer.render("adapter_now.html.j2", visit=visit, **context)

    return await visit.live(draw, every=_EVERY)


async def _now(visit: Visit) -> tuple[AdapterDetails, dict[str, Any]]:
    """The adapter, and what both templates show of it. Raises ApiError."""
    details, placement = await asyncio.gather(adapter(visit), _explained(visit))
    name = details.adapter
    operator = visit.role is Role.OPERATOR
    table = view(
        rows.version_columns(details, operator=operator),
        list(reversed(details.version_details)),
        visit.query,
        path=page_of(name),
    )
    return details, {
        "adapter": details,
        "name": name,
        "state": rows.state_cell(details),
        "compared": rows.compared(details),
        "steps": rows.steps(details),
        "table": table,
        "placement": placement,
    }


async def _explained(visit: Visit) -> Explanation | None:
    """Where a request would go now. None: only operators see that, or nothing is live."""
    if visit.role is not Role.OPERATOR:
        return None
    try:
        return await visit.api.get(f"/admin/v1/explain/{full_name(visit)}", Explanation)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


async def version(visit: Visit) -> Response:
    name, version_name = full_name(visit), visit.params["version"]
    details = await adapter(visit)
    shown = next((v for v in details.version_details if v.version == version_name), None)
    if shown is None:
        raise ApiError(404, "not_found", f"{name} has no version {version_name[:40]}.")
    single, several = rows.evidence(shown.evidence)
    return visit.page(
        "adapter_version.html.j2",
        adapter=details,
        name=name,
        v=shown,
        state=rows.version_state(details, shown),
        evaluation=rows.last_evaluation_cell(shown.evaluation),
        single=single,
        several=several,
        resident=rows.resident(shown.placed or ()),
        cli=command("adapter", "show", name),
    )


ROUTES = (
    Route("/adapters/{tenant}/{name}", one, VISITORS),
    Route("/adapters/{tenant}/{name}/versions/{version}", version, MANAGERS),
    Route("/live/adapters/{tenant}/{name}", live, MANAGERS),
)
