"""The list of tenants, one tenant's page, and a tenant's own view of it."""

from __future__ import annotations

import asyncio
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.api_client import ApiError, maybe
from gateway.console.pages.tenants import forms, rows
from gateway.console.tables import view
from gateway.console.visit import CUSTOMERS, OPERATORS, Route, Visit
from gateway.tenants.directory import Role

Json = dict[str, Any]
_API: Final = "/admin/v1/tenants"
_PATIENCE: Final = 1.0
"""Seconds that the list waits for the currency."""


async def tenants(visit: Visit) -> Response:
    listed, currency = await asyncio.gather(visit.api.get(_API), _currency(visit))
    found = listed["data"]
    table = visit.table(rows.tenant_columns(currency), found, sort="name")
    return visit.export(table, "tenants") or visit.page("tenants.html.j2", table=table, any=bool(found))


async def _currency(visit: Visit) -> str:
    """Of the price book; empty if it is not known, or the ledger takes long."""
    try:
        async with asyncio.timeout(_PATIENCE):
            prices, _ = await maybe(visit.api.get("/admin/v1/prices"))
    except TimeoutError:
        return ""
    return next((str(row["currency"]) for row in (prices or {"data": []})["data"]), "")


async def tenant(visit: Visit) -> Response:
    name = visit.params["name"]
    found = await visit.api.get(f"{_API}/{_segment(name)}")
    return await _show(visit, found, found["keys"], _page(name))


async def account(visit: Visit) -> Response:
    """The same page with a tenant's own walls."""
    managed = visit.role is Role.TENANT_ADMIN
    found, own = await asyncio.gather(
        visit.api.get("/admin/v1/account"), visit.api.get("/admin/v1/keys" if managed else "/admin/v1/me")
    )
    return await _show(visit, found, own["data"] if managed else [own], "/console/account")


async def _show(visit: Visit, found: Json, keys: list[Json], path: str) -> Response:
    name = found["name"]
    valid = [_whole(key) for key in keys if key.get("revoked") is None]
    columns = rows.key_columns(visit.now, tenants=False, linked=visit.role is not Role.TENANT)
    tables = {
        "keys": visit.table(columns, valid, sort="-last_used", name="keys"),
        "errors": visit.table(rows.ERRORS, found["errors"], name="errors", size=20),
        "adapters": visit.table(
            rows.ADAPTERS, found.get("adapters", []), sort="adapter", name="adapters", size=20
        ),
    }
    asked = visit.query.get("format", "").partition(":")[2]
    if asked == "days":
        tables["days"] = (await _spend(visit, name, path))["days"]
    if asked in tables and (export := visit.export(tables[asked], f"{name}-{asked}")) is not None:
        return export
    return visit.page(
        "tenant.html.j2",
        tenant=found,
        staff=visit.tenant is None,
        uses=rows.uses(found, found["currency"]),
        quotas=rows.quota_rows(found["quota_use"]),
        budgets=forms.BUDGETS,
        revoked=len(keys) - len(valid),
        labels=rows.shown_labels(found.get("requires", {})),
        quoted=shlex.quote(name),
        path=path,
        spend=f"{path}/spend?{visit.request.url.query}",
        keys=tables["keys"],
        errors=tables["errors"],
        adapters=tables["adapters"],
    )


async def spend(visit: Visit) -> Response:
    """The part of the page that asks the ledger, which may take a second."""
    name = visit.tenant or visit.params["name"]
    path = "/console/account" if visit.tenant else _page(name)
    return visit.page("tenant_spend.html.j2", **await _spend(visit, name, path))


async def _spend(visit: Visit, name: str, path: str) -> Json:
    today = datetime.fromtimestamp(visit.now // 1_000_000, UTC).date()
    within = {"from": f"{today - timedelta(days=rows.DAYS - 1)}", "to": f"{today + timedelta(days=1)}"}
    costs, month, (ahead, _) = await asyncio.gather(
        visit.api.get("/finance/v1/costs", by="day", tenant=name, **within),
        visit.api.get("/finance/v1/costs", by="tenant", tenant=name),
        maybe(visit.api.get("/finance/v1/forecast", tenant=name)),
    )
    currency = month["currency"] or ""
    options: Json = {"path": path, "sort": "-day", "name": "days", "size": rows.DAYS}
    return {
        "days": view(rows.day_columns(currency), costs["rows"], visit.query, **options),
        "chart": rows.days(costs, visit.now) if costs["rows"] else None,
        "totals": month["totals"],
        "forecast": rows.forecast(ahead, name),
        "currency": currency,
        "complete": costs["complete"] and month["complete"],
        "missing": month.get("missing"),
    }


async def new(visit: Visit) -> Response:
    return visit.page("tenant_new.html.j2")


async def add(visit: Visit) -> Response:
    name = visit.text("name")
    body = {"name": name, "base_access": bool(visit.text("base_access"))}
    added = await visit.api.post(_API, body, new_only="true")
    return visit.see(_page(name), " ".join([f"{name} added. Its first key comes next.", *added["warnings"]]))


async def edit(visit: Visit) -> Response:
    found = await visit.api.get(f"{_API}/{_segment(visit.params['name'])}")
    return visit.page(
        "tenant_edit.html.j2",
        tenant=found,
        values=forms.values(found),
        groups=(
            ("Limits", "Of all of its requests, over all gateways.", forms.LIMITS),
            ("Budget", "Requests beyond it are refused until the day or month ends.", forms.BUDGETS),
            ("Quotas", "What it may register itself, with a key of role tenant-admin.", forms.QUOTAS),
        ),
        choices=forms.CHOICES,
        labels=rows.shown_labels(found["requires"]),
        quoted=shlex.quote(found["name"]),
        path=_page(found["name"]),
    )


async def save(visit: Visit) -> Response:
    name = visit.params["name"]
    changed = await visit.api.patch(f"{_API}/{_segment(name)}", forms.tenant(visit.text))
    warnings = "".join(f" Warning: {warning}." for warning in changed["warnings"])
    return visit.see(_page(name), f"{name} changed. This holds from the next request on.{warnings}")


async def limit(visit: Visit) -> Response:
    """Change one limit or budget."""
    name = visit.params["name"]
    await visit.api.patch(f"{_API}/{_segment(name)}", forms.one(visit.text))
    return visit.see(_page(name), "Changed. This holds from the next request on.")


async def suspend(visit: Visit) -> Response:
    name = visit.params["name"]
    await visit.api.patch(f"{_API}/{_segment(name)}", {"suspended": True})
    return visit.see(_page(name), f"{name} is suspended. Requests that were running end normally.")


async def resume(visit: Visit) -> Response:
    name = visit.params["name"]
    await visit.api.patch(f"{_API}/{_segment(name)}", {"suspended": False})
    return visit.see(_page(name), f"{name} is served again.")


async def remove(visit: Visit) -> Response:
    """Shows what has to go before; or removes the tenant."""
    name = visit.params["name"]
    if visit.text("confirm") != name:
        raise ApiError(400, "invalid_value", f"Type {name} to remove it.", "confirm")
    told = await visit.api.delete(f"{_API}/{_segment(name)}", dry_run="true")
    if told["obstacles"]:
        first = "; ".join(f"{o['kind']} {o['id']}: {o['command']}" for o in told["obstacles"][:5])
        more = len(told["obstacles"]) - 5
        rest = f"; and {more} more" if more > 0 else ""
        raise ApiError(
            409,
            "in_use",
            f"{name} cannot be removed yet. First remove {first}{rest}. "
            f"Or all at once: florin tenant remove {name} --cascade",
        )
    await visit.api.delete(f"{_API}/{_segment(name)}")
    return visit.see("/console/tenants", f"{name} removed. Its usage and costs stay in the ledger.")


def _page(name: str) -> str:
    return f"/console/tenants/{_segment(name)}"


def _segment(name: str) -> str:
    return quote(name, safe="")


def _whole(key: Json) -> Json:
    """`/me` leaves out what an own key needs not be told."""
    return {"revoked": None, "replaced_by": "", "last_used": None} | key


ROUTES = (
    Route("/tenants", tenants, OPERATORS),
    Route("/tenants", add, OPERATORS, "POST"),
    Route("/new-tenant", new, OPERATORS),
    Route("/tenants/{name}", tenant, OPERATORS),
    Route("/tenants/{name}/edit", edit, OPERATORS),
    Route("/tenants/{name}/edit", save, OPERATORS, "POST"),
    Route("/tenants/{name}/limit", limit, OPERATORS, "POST"),
    Route("/tenants/{name}/suspend", suspend, OPERATORS, "POST"),
    Route("/tenants/{name}/resume", resume, OPERATORS, "POST"),
    Route("/tenants/{name}/remove", remove, OPERATORS, "POST"),
    Route("/tenants/{name}/spend", spend, OPERATORS),
    Route("/account", account, CUSTOMERS),
    Route("/account/spend", spend, CUSTOMERS),
)
