"""Keys: all of them for operators, a tenant's own for its administrators."""

from __future__ import annotations

import shlex
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.forms import FormField, body_of, fields_of
from gateway.console.pages.tenants import rows
from gateway.console.visit import MANAGERS, Route, Visit
from gateway.schemas.base import Listed
from gateway.tenants.directory import TENANT_ROLES, Role
from gateway.tenants.keys.schemas import CreatedKey, Key, KeyFields, NewKey, RotatedKey
from gateway.tenants.schemas.tenants import Tenant
from gateway.tenants.schemas.terms import KeyTerms

_API: Final = "/admin/v1/keys"
_STATES: Final = {"valid": "Valid", "gone": "Revoked or expired", "all": "All"}
_STAFF: Final = frozenset({Role.OPERATOR, Role.FINANCE, Role.AUDITOR, Role.METRICS})
"""Roles of keys that the console creates, besides tenants'."""


async def keys(visit: Visit) -> Response:
    every = (await visit.api.get(_API, Listed[Key])).data
    state = visit.query.get("state", "valid")
    if state not in _STATES:
        state = "valid"
    shown = [key for key in every if state == "all" or _valid(key, visit.now) is (state == "valid")]
    columns = rows.key_columns(visit.now, tenants=visit.tenant is None)
    table = visit.table(columns, shown, sort="-created")
    return visit.export(table, "keys") or visit.page(
        "keys.html.j2", table=table, state=state, states=_STATES, any=bool(every)
    )


async def new(visit: Visit) -> Response:
    tenants = () if visit.tenant else (await visit.api.get("/admin/v1/tenants", Listed[Tenant])).data
    tenant = visit.tenant or visit.query.get("tenant", "")
    (role,) = fields_of(NewKey, "role")
    offered = TENANT_ROLES if visit.tenant else TENANT_ROLES | _STAFF
    return visit.page(
        "key_new.html.j2",
        names=[(tenant.name, tenant.name) for tenant in tenants],
        tenant=tenant,
        roles=[(value, words) for value, words in role.options or () if value in offered],
        role=visit.query.get("role", "tenant" if tenant else "operator"),
        fields=fields_of(NewKey, "label", "expires"),
        groups=_groups(visit, NewKey),
    )


async def create(visit: Visit) -> Response:
    role = visit.text("role")
    body = {"role": role, "expires": visit.text("expires") or None} | _terms(visit, role)
    if role in TENANT_ROLES:
        body["tenant"] = visit.tenant or visit.text("tenant")
    return _secret(visit, await visit.api.post(_API, body, CreatedKey))


async def key(visit: Visit) -> Response:
    key = await visit.api.get(f"{_API}/{_segment(visit.params['id'])}", Key)
    return visit.page(
        "key.html.j2",
        key=key,
        state=rows.key_state(key, visit.now),
        of_tenant=key.role in TENANT_ROLES,
        own=key.id == visit.key.id,
        scopes=rows.scopes_in_words(key),
        label=fields_of(KeyFields, "label", values=key)[0],
        groups=_groups(visit, KeyFields, key),
        quoted=shlex.quote(key.id),
        path=_page(key.id),
        audit=f"/console/audit?{urlencode({'actor': 'key:' + key.id})}",
        about=f"/console/audit?{urlencode({'subject': key.id})}",
    )


async def save(visit: Visit) -> Response:
    key = await visit.api.get(f"{_API}/{_segment(visit.params['id'])}", Key)
    body = _terms(visit, key.role)
    if expires := visit.text("expires"):
        body |= {"expires": None if expires == "never" else expires}
    await visit.api.patch(f"{_API}/{_segment(key.id)}", body, Key)
    return visit.see(_page(key.id), "Changed. Every gateway knows within a second.")


def _terms(visit: Visit, role: str) -> dict[str, Any]:
    """The part of a body that new and changed keys have in common. Only tenants' keys have scopes and limits,
    and only operators set priorities. Raises ApiError."""
    body = body_of(KeyTerms, visit.text)
    if role not in TENANT_ROLES:
        return {"label": body["label"]}
    if visit.tenant is not None:
        del body["priority"]
    return body


async def rotate(visit: Visit) -> Response:
    body = {"overlap": visit.text("overlap") or "24h"}
    key = await visit.api.post(f"{_API}/{_segment(visit.params['id'])}/rotate", body, RotatedKey)
    return _secret(visit, key, key.replaced)


async def revoke(visit: Visit) -> Response:
    key_id = visit.params["id"]
    if visit.text("confirm") != key_id:
        raise ApiError(400, "invalid_value", f"Type {key_id} to revoke it.", "confirm")
    await visit.api.delete(f"{_API}/{_segment(key_id)}", Key)
    if key_id == visit.key.id:
        return visit.see("/console/sign-in")
    return visit.see(_page(key_id), f"Key {key_id} is revoked. Every gateway refuses it within a second.")


def _secret(visit: Visit, key: CreatedKey, replaced: Key | None = None) -> Response:
    """The only page that shows a key. Nothing keeps it: neither the store, nor history, nor a cache."""
    return visit.page("key_secret.html.j2", key=key, replaced=replaced, host=str(visit.request.base_url))


def _groups(
    visit: Visit, body: type[KeyFields], key: Key | None = None
) -> list[tuple[str, str, list[FormField]]]:
    """Title, explanation and fields of the parts of a form that only tenants' keys have."""
    own = fields_of(body, "cost_centre", *([] if visit.tenant else ["priority"]), values=key)
    return [
        ("Scopes", "What it may do.", [*fields_of(body, section="scopes", values=key), *own]),
        ("Limits of the key", "Its tenant's apply, too.", fields_of(body, section="limits", values=key)),
        ("Budget of the key", "Its tenant's applies, too.", fields_of(body, section="budget", values=key)),
    ]


def _valid(key: Key, now: int) -> bool:
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
