"""The list of tenants, one tenant's page, and a tenant's own view of it."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.api_client import ApiError, maybe
from gateway.console.forms import FormField, body_of, fields_of
from gateway.console.pages.tenants import rows
from gateway.console.tables import view
from gateway.console.visit import CUSTOMERS, OPERATORS, Route, Visit
from gateway.costs.credits.schemas import Balance
from gateway.costs.forecasting.schemas import Forecast
from gateway.costs.prices.schemas import ListedPrice
from gateway.costs.reports.schemas.costs import CostReport
from gateway.fleet.adapters.schemas.adapters import Adapter
from gateway.schemas.base import Listed
from gateway.tenants.directory import Role
from gateway.tenants.keys.schemas import Key
from gateway.tenants.people.schemas import Account, Me
from gateway.tenants.schemas.tenants import AddedTenant, ChangedTenant, RemovedTenant, Tenant, TenantPage
from gateway.tenants.schemas.terms import TenantTerms

Json = dict[str, Any]
_API: Final = "/admin/v1/tenants"
_PATIENCE: Final = 1.0
"""Seconds that the list waits for the currency."""
_GROUPS: Final = (
    ("limits", "Limits", "Of all of its requests, over all gateways."),
    ("budget", "Budget", "Requests beyond it are refused until the day or month ends."),
    ("quotas", "Quotas", "What it may register itself, with a key of role tenant-admin."),
    ("policy", "Requests", "Where they differ from the installation's settings; `none` in a list: nothing."),
    ("", "The tenant", "How it shares the fleet, and how its costs are grouped."),
)
"""Sections of the form: name, title, explanation."""


async def tenants(visit: Visit) -> Response:
    listed, currency = await asyncio.gather(visit.api.get(_API, Listed[Tenant]), _currency(visit))
    table = visit.table(rows.tenant_columns(currency), listed.data, sort="name")
    return visit.export(table, "tenants") or visit.page("tenants.html.j2", table=table, any=bool(listed.data))


async def _currency(visit: Visit) -> str:
    """The price book's currency; empty if it is not known, or the ledger takes long."""
    try:
        async with asyncio.timeout(_PATIENCE):
            prices, _ = await maybe(visit.api.get("/admin/v1/prices", Listed[ListedPrice]))
    except TimeoutError:
        return ""
    return next((price.currency for price in prices.data), "") if prices else ""


async def tenant(visit: Visit) -> Response:
    name = visit.params["name"]
    page = await visit.api.get(f"{_API}/{_segment(name)}", TenantPage)
    labels = rows.shown_labels(page.requires)
    return await _show(visit, page, page.keys, _page(name), adapters=page.adapters, labels=labels)


async def account(visit: Visit) -> Response:
    """The same page with a tenant's own walls."""
    account, keys = await asyncio.gather(visit.api.get("/admin/v1/account", Account), _own_keys(visit))
    return await _show(visit, account, keys, "/console/account")


async def _own_keys(visit: Visit) -> Sequence[Key]:
    if visit.role is Role.TENANT_ADMIN:
        return (await visit.api.get("/admin/v1/keys", Listed[Key])).data
    return [await visit.api.get("/admin/v1/me", Me)]


async def _show(
    visit: Visit,
    page: TenantPage | Account,
    keys: Sequence[Key],
    path: str,
    *,
    adapters: Sequence[Adapter] = (),
    labels: str = "",
) -> Response:
    name = page.name
    valid = [key for key in keys if key.revoked is None]
    columns = rows.key_columns(visit.now, tenants=False, linked=visit.role is not Role.TENANT)
    tables = {
        "keys": visit.table(columns, valid, sort="-last_used", name="keys"),
        "errors": visit.table(rows.ERRORS, page.errors, name="errors", size=20),
        "adapters": visit.table(rows.ADAPTERS, adapters, sort="adapter", name="adapters", size=20),
    }
    requested = visit.query.get("format", "").partition(":")[2]
    if requested == "days":
        tables["days"] = (await _spend(visit, name, path))["days"]
    if requested in tables:
        export = visit.export(tables[requested], f"{name}-{requested}")
        if export is not None:
            return export
    return visit.page(
        "tenant.html.j2",
        tenant=page,
        staff=visit.tenant is None,
        uses=rows.uses(page, page.currency),
        quotas=rows.quotas(page.quota_use),
        policy=rows.policy(page.policy),
        budgets=[field for field in fields_of(TenantTerms, section="budget") if not field.value],
        revoked=len(keys) - len(valid),
        labels=labels,
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
    costs, month, (ahead, _), (prepaid, _) = await asyncio.gather(
        visit.api.get("/finance/v1/costs", CostReport, by="day", tenant=name, **within),
        visit.api.get("/finance/v1/costs", CostReport, by="tenant", tenant=name),
        maybe(visit.api.get("/finance/v1/forecast", Forecast, tenant=name)),
        maybe(visit.api.get(f"/finance/v1/credits/balance/{_segment(name)}", Balance)),
    )
    currency = month.currency or ""
    options: Json = {"path": path, "sort": "-day", "name": "days", "size": rows.DAYS}
    return {
        "days": view(rows.day_columns(currency), costs.rows, visit.query, **options),
        "chart": rows.days(costs, visit.now) if costs.rows else None,
        "totals": month.totals,
        "forecast": rows.forecast(ahead, name),
        "prepaid": prepaid if prepaid and (prepaid.opening, prepaid.granted) != ("0.00", "0.00") else None,
        "currency": currency,
        "incomplete": costs if month.complete else month,
    }


async def new(visit: Visit) -> Response:
    return visit.page("tenant_new.html.j2", base_access=fields_of(TenantTerms, "base_access")[0])


async def add(visit: Visit) -> Response:
    name = visit.text("name")
    body = {"name": name} | body_of(TenantTerms, visit.text, "base_access")
    added = await visit.api.post(_API, body, AddedTenant, new_only="true")
    return visit.see(_page(name), " ".join([f"{name} added. Its first key comes next.", *added.warnings]))


async def edit(visit: Visit) -> Response:
    tenant = await visit.api.get(f"{_API}/{_segment(visit.params['name'])}", TenantPage)
    return visit.page(
        "tenant_edit.html.j2",
        tenant=tenant,
        groups=[(title, about, _fields(tenant, section)) for section, title, about in _GROUPS],
        quoted=shlex.quote(tenant.name),
        path=_page(tenant.name),
    )


def _fields(tenant: Tenant, section: str) -> list[FormField]:
    fields = fields_of(TenantTerms, section=section, values=tenant)
    return fields if section else [field for field in fields if "." not in field.name]


async def save(visit: Visit) -> Response:
    name = visit.params["name"]
    body = body_of(TenantTerms, visit.text)
    changed = await visit.api.patch(f"{_API}/{_segment(name)}", body, ChangedTenant)
    warnings = "".join(f" Warning: {warning}." for warning in changed.warnings)
    return visit.see(_page(name), f"{name} changed. This holds from the next request on.{warnings}")


async def limit(visit: Visit) -> Response:
    """Change one limit or budget: `field` says which, `value` to what."""
    name = visit.params["name"]
    section, _, field = visit.text("field").partition(".")
    if field not in rows.LIMITS or rows.LIMITS[field].path[0] != section:
        raise ApiError(400, "invalid_value", "There is no such limit.")
    body = body_of(TenantTerms, lambda _: visit.text("value"), field, section=section)
    await visit.api.patch(f"{_API}/{_segment(name)}", body, ChangedTenant)
    return visit.see(_page(name), "Changed. This holds from the next request on.")


async def suspend(visit: Visit) -> Response:
    name = visit.params["name"]
    await visit.api.patch(f"{_API}/{_segment(name)}", {"suspended": True}, ChangedTenant)
    return visit.see(_page(name), f"{name} is suspended. Requests that were running end normally.")


async def resume(visit: Visit) -> Response:
    name = visit.params["name"]
    await visit.api.patch(f"{_API}/{_segment(name)}", {"suspended": False}, ChangedTenant)
    return visit.see(_page(name), f"{name} is served again.")


async def remove(visit: Visit) -> Response:
    """Shows what has to go before; or removes the tenant."""
    name = visit.params["name"]
    if visit.text("confirm") != name:
        raise ApiError(400, "invalid_value", f"Type {name} to remove it.", "confirm")
    trial = await visit.api.delete(f"{_API}/{_segment(name)}", RemovedTenant, dry_run="true")
    if trial.obstacles:
        first = "; ".join(f"{o.kind} {o.id}: {o.command}" for o in trial.obstacles[:5])
        more = len(trial.obstacles) - 5
        rest = f"; and {more} more" if more > 0 else ""
        raise ApiError(
            409,
            "in_use",
            f"{name} cannot be removed yet. First remove {first}{rest}. "
            f"Or all at once: florin tenant remove {name} --cascade",
        )
    removed = await visit.api.delete(f"{_API}/{_segment(name)}", RemovedTenant)
    months = ", ".join(removed.charges.months)
    still = f" Statements still to come: {months}." if months else ""
    return visit.see("/console/tenants", f"{name} removed. Its usage and costs stay in the ledger.{still}")


def _page(name: str) -> str:
    return f"/console/tenants/{_segment(name)}"


def _segment(name: str) -> str:
    return quote(name, safe="")


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
