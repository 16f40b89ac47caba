"""Search: adapters, engines, tenants, keys, request ids and pages, as far as the visitor may see them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.pages.requests.one import known
from gateway.console.visit import ALL, AUDIT, BOOKS, CUSTOMERS, MANAGERS, Route, Visit
from gateway.costs.reports.schemas.usage import RequestUsage
from gateway.fleet.adapters.schemas.adapters import Adapter
from gateway.fleet.engines.schemas.engines import Engine
from gateway.fleet.placement.schemas import Decisions
from gateway.installation.audit.schemas import RequestAttempts
from gateway.schemas.base import Answer, Listed, Named
from gateway.tenants.directory import Role
from gateway.tenants.keys.schemas import Key
from gateway.tenants.people.schemas import Account

A = TypeVar("A", bound=Answer)

_MOST: Final = 12
"""The limit on the hits of each group."""
_LONGEST: Final = 200
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{7,199}")
_PAGES: Final = (
    ("Fleet", "/console/fleet", "engines map slots loads evictions", {Role.OPERATOR}),
    ("Add an engine", "/console/add-engine", "register vllm url", {Role.OPERATOR}),
    ("Enrol a host", "/console/enrol-host", "token gpu engine run", {Role.OPERATOR}),
    ("Requests", "/console/requests", "usage errors latest recent", set(ALL)),
    ("Adapters", "/console/adapters", "versions canary promote", set(MANAGERS | CUSTOMERS)),
    ("Register an adapter", "/console/adapters/new", "upload source add", set(MANAGERS)),
    ("Tenants", "/console/tenants", "customers limits budgets queue", {Role.OPERATOR}),
    ("Your account", "/console/account", "limits budget use queue", set(CUSTOMERS)),
    ("Keys", "/console/keys", "create rotate revoke", set(MANAGERS)),
    ("Costs", "/console/money", "money spend month bill", set(ALL)),
    ("Months", "/console/money/months", "close verify statement export", set(ALL)),
    ("Prices", "/console/money/prices", "rate gpu hour card exchange", set(BOOKS)),
    ("Margin", "/console/money/margin", "price earned", set(BOOKS)),
    ("Utilization", "/console/money/utilization", "idle busy unused", set(BOOKS)),
    ("Budgets", "/console/money/budgets", "forecast alerts anomalies", set(ALL)),
    ("Health", "/console/health", "doctor problems checks", {Role.OPERATOR}),
    ("Audit", "/console/audit", "who did what log", set(AUDIT)),
    ("Settings", "/console/settings", "configuration variables", {Role.OPERATOR}),
    ("Where would a request go?", "/console/explain", "explain schedule placement why", {Role.OPERATOR}),
)


@dataclass(frozen=True, slots=True)
class Hit:
    title: str
    href: str
    note: str = ""
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    hits: tuple[Hit, ...]
    more: int
    """Others that are not shown."""


async def search(visit: Visit) -> Response:
    text = visit.query.get("q", "").strip()[:_LONGEST]
    if not text:
        return visit.page("search.html.j2", text="", groups=[])
    staff = visit.role is Role.OPERATOR
    manager = visit.role in MANAGERS
    adapters, engines, tenants, keys, request = await asyncio.gather(
        _listed(visit, "/admin/v1/adapters", Adapter, allowed=manager),
        _listed(visit, "/admin/v1/engines", Engine, allowed=staff),
        _listed(visit, "/admin/v1/tenants", Named, allowed=staff),
        _listed(visit, "/admin/v1/keys", Key, allowed=manager),
        _request(visit, text),
    )
    groups = [
        group("Requests", request),
        group("Adapters", await asyncio.to_thread(adapter_hits, adapters, text)),
        group("Engines", engine_hits(engines, text)),
        group("Tenants", tenant_hits(tenants, text)),
        group("Keys", key_hits(keys, text)),
        group("Pages", page_hits(visit.role, text)),
    ]
    matching = [group for group in groups if group.hits]
    if (target := only_exact(matching)) is not None:
        return visit.see(target)
    return visit.page("search.html.j2", text=text, groups=matching)


def group(title: str, hits: Sequence[Hit]) -> Group:
    """Exact hits first, then in the order given."""
    ordered = sorted(hits, key=lambda hit: not hit.exact)
    return Group(title, tuple(ordered[:_MOST]), max(0, len(ordered) - _MOST))


def only_exact(groups: Iterable[Group]) -> str | None:
    """Where the one exact hit leads; None: there is none, or several."""
    exact = [hit.href for group in groups for hit in group.hits if hit.exact]
    return exact[0] if len(exact) == 1 else None


async def _listed(visit: Visit, path: str, kind: type[A], *, allowed: bool) -> Sequence[A]:
    """Empty if the visitor may not list them."""
    return (await visit.api.get(path, Listed[kind])).data if allowed else ()  # type: ignore[valid-type]  # a type that varies


async def _request(visit: Visit, text: str) -> list[Hit]:
    if not _REQUEST_ID.fullmatch(text):
        return []
    path = quote(text, safe="")
    page = f"/console/requests/{path}"
    if await known(visit, f"/finance/v1/usage/{path}", RequestUsage):
        return [Hit(text, page, "request", exact=True)]
    if visit.role is Role.OPERATOR:
        if await known(visit, f"/admin/v1/explain/{path}", Decisions):  # it may be running
            return [Hit(text, page, "request", exact=True)]
        attempts = await visit.api.get(f"/admin/v1/audit/requests/{path}", RequestAttempts)
        refused = attempts.error is not None
    elif visit.tenant is not None:
        errors = (await visit.api.get("/admin/v1/account", Account)).errors
        refused = any(error.request_id == text for error in errors)
    else:
        refused = False
    return [Hit(text, page, "refused request", exact=True)] if refused else []


# -- what matches


def _matches(text: str, *fields: str) -> bool:
    searched = " ".join(fields).lower()
    return all(word in searched for word in text.lower().split())


def adapter_hits(adapters: Iterable[Adapter], text: str) -> list[Hit]:
    """`text` may name a version: acme/support@v3."""
    name, _, version = text.partition("@")
    return [
        Hit(
            a.adapter,
            f"/console/adapters/{quote(a.adapter)}",
            f"live: {a.live or 'none'}",
            exact=a.adapter == name and (not version or version in a.versions),
        )
        for a in adapters
        if _matches(name, a.adapter, *a.versions)
    ]


def engine_hits(engines: Iterable[Engine], text: str) -> list[Hit]:
    return [
        Hit(
            e.name,
            f"/console/fleet/{e.name}",
            f"{e.gpu_type}, {e.base}, {e.health}",
            exact=text in {e.name, e.url},
        )
        for e in engines
        if _matches(text, e.name, e.url, e.gpu_type, e.base, e.region)
    ]


def tenant_hits(tenants: Iterable[Named], text: str) -> list[Hit]:
    return [
        Hit(t.name, f"/console/tenants/{t.name}", exact=t.name == text)
        for t in tenants
        if _matches(text, t.name)
    ]


def key_hits(keys: Iterable[Key], text: str) -> list[Hit]:
    """By id or label. A whole key is never looked for: its id is its second part."""
    ident = text.split("_")[1] if text.startswith("fl_") and text.count("_") >= 2 else text
    return [
        Hit(
            k.label or k.id,
            f"/console/tenants/{k.tenant}" if k.tenant else "/console/settings",
            ", ".join(filter(None, (f"key {k.id}", k.role, k.tenant, "revoked" if k.revoked else ""))),
            exact=k.id == ident,
        )
        for k in keys
        if _matches(ident, k.id, k.label)
    ]


def page_hits(role: Role, text: str) -> list[Hit]:
    return [
        Hit(title, href)
        for title, href, words, roles in _PAGES
        if role in roles and _matches(text, title, words)
    ]


ROUTES = (Route("/search", search, ALL),)
