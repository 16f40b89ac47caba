"""Keys: all of them for operators, a tenant's own for its administrators."""

from __future__ import annotations

import shlex
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.pages.tenants import forms, rows
from gateway.console.visit import MANAGERS, Route, Visit
from gateway.tenants.directory import TENANT_ROLES, Role

Json = dict[str, Any]
_API: Final = "/admin/v1/keys"
_STATES: Final = {"valid": "Valid", "gone": "Revoked or expired", "all": "All"}
_ROLES: Final = {
    Role.TENANT: "tenant: calls models",
    Role.TENANT_ADMIN: "tenant-admin: also manages its tenant's adapters and keys",
    Role.OPERATOR: "operator: everything",
    Role.FINANCE: "finance: prices, costs, months",
    Role.METRICS: "metrics: reads /metrics",
}


async def keys(visit: Visit) -> Response:
    found = (await visit.api.get(_API))["data"]
    state = visit.query.get("state", "valid")
    if state not in _STATES:
        state = "valid"
    shown = [key for key in found if state == "all" or _valid(key, visit.now) is (state == "valid")]
    columns = rows.key_columns(visit.now, tenants=visit.tenant is None)
    table = visit.table(columns, shown, sort="-created")
    return visit.export(table, "keys") or visit.page(
        "keys.html.j2", table=table, state=state, states=_STATES, any=bool(found)
    )


async def new(visit: Visit) -> Response:
    names = [] if visit.tenant else [t["name"] for t in (await visit.api.get("/admin/v1/tenants"))["data"]]
    tenant = visit.tenant or visit.query.get("tenant", "")
    roles = [(r.value, words) for r, words in _ROLES.items() if visit.tenant is None or r in TENANT_ROLES]
    return visit.page(
        "key_new.html.j2",
        names=[(name, name) for name in names],
        tenant=tenant,
        roles=roles,
        role=visit.query.get("role", "tenant" if tenant or visit.tenant else "operator"),
        groups=_groups(),
        values={},
        priorities=forms.PRIORITIES,
    )


async def create(visit: Visit) -> Response:
    role = visit.text("role")
    of_tenant = role in {str(r) for r in TENANT_ROLES}
    body = forms.key(visit.text, of_tenant=of_tenant) | {
        "role": role,
        "expires": visit.text("expires") or None,
    }
    if of_tenant:
        body |= {"tenant": visit.tenant or visit.text("tenant")}
        if visit.tenant is None:
            body |= {"priority": visit.text("priority") or "normal"}
    return _secret(visit, await visit.api.post(_API, body), None)


async def key(visit: Visit) -> Response:
    found = await visit.api.get(f"{_API}/{_segment(visit.params['id'])}")
    return visit.page(
        "key.html.j2",
        key=found,
        state=rows.key_state(found, visit.now),
        of_tenant=found["role"] in TENANT_ROLES,
        own=found["id"] == visit.key.id,
        scopes=rows.scopes_in_words(found),
        groups=_groups(),
        values=forms.values(found),
        priorities=forms.PRIORITIES,
        quoted=shlex.quote(found["id"]),
        path=_page(found["id"]),
        audit=f"/console/audit?{urlencode({'actor': 'key:' + found['id']})}",
        about=f"/console/audit?{urlencode({'subject': found['id']})}",
    )


async def save(visit: Visit) -> Response:
    found = await visit.api.get(f"{_API}/{_segment(visit.params['id'])}")
    of_tenant = found["role"] in TENANT_ROLES
    body = forms.key(visit.text, of_tenant=of_tenant)
    if of_tenant and visit.tenant is None:
        body |= {"priority": visit.text("priority") or "normal"}
    if expires := visit.text("expires"):
        body |= {"expires": None if expires == "never" else expires}
    await visit.api.patch(f"{_API}/{_segment(found['id'])}", body)
    return visit.see(_page(found["id"]), "Changed. Every gateway knows within a second.")


async def rotate(visit: Visit) -> Response:
    body = {"overlap": visit.text("overlap") or "24h"}
    made = await visit.api.post(f"{_API}/{_segment(visit.params['id'])}/rotate", body)
    return _secret(visit, made, made["replaced"])


async def revoke(visit: Visit) -> Response:
    key_id = visit.params["id"]
    if visit.text("confirm") != key_id:
        raise ApiError(400, "invalid_value", f"Type {key_id} to revoke it.", "confirm")
    await visit.api.delete(f"{_API}/{_segment(key_id)}")
    if key_id == visit.key.id:
        return visit.see("/console/sign-in")
    return visit.see(_page(key_id), f"Key {key_id} is revoked. Every gateway refuses it within a second.")


def _secret(visit: Visit, made: Json, replaced: Json | None) -> Response:
    """The only page that shows a key. Nothing keeps it: neither the store, nor history, nor a cache."""
    return visit.page("key_secret.html.j2", made=made, replaced=replaced, host=str(visit.request.base_url))


def _groups() -> tuple[tuple[str, str, tuple[forms.Field, ...]], ...]:
    return (
        ("Limits of the key", "Its tenant's apply, too.", forms.LIMITS),
        ("Budget of the key", "Its tenant's applies, too.", forms.BUDGETS),
    )


def _valid(key: Json, now: int) -> bool:
    return rows.key_state(key, now)[0] in {"valid", "being replaced"}


def _page(key_id: str) -> str:
    return f"/console/keys/{_segment(key_id)}"


def _segment(text: str) -> str:
    return quote(text, safe="")


ROUTES = (
    Route("/keys", keys, MANAGERS),
    Route("/keys", create, MANAGERS, "POST"),
    Route("/new-key", new, MANAGERS),
    Route("/keys/{id}", key, MANAGERS),
    Route("/keys/{id}", save, MANAGERS, "POST"),
    Route("/keys/{id}/rotate", rotate, MANAGERS, "POST"),
    Route("/keys/{id}/revoke", revoke, MANAGERS, "POST"),
)
