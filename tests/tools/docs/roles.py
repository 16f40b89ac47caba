"""The page of routes and roles: who may call what, from the rules by which the gateway decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.api.access_rules import access_rules, rule_for
from gateway.config import Settings
from gateway.dialects.endpoints import ENDPOINTS
from gateway.tenants.directory import TENANT_ROLES, Role
from tests.tools.docs.http_api import openapi, operations
from tests.tools.docs.markdown import code, document, table

_INTRO = """
Every route of a gateway, and the roles whose keys may call it. `own`: only objects of the key's own
tenant, or, for role `engine`, of its own engine; others get the answer of what does not exist. An empty
cell: 403 `insufficient_role`; and without a key, 401. There are no other routes: none of an engine's can be
reached.
[Self-service](../self-service.md) is the guide for role `tenant-admin`.
"""

_COLUMNS: Final = (
    *(Role.TENANT, Role.TENANT_ADMIN, Role.OPERATOR, Role.FINANCE, Role.AUDITOR),
    *(Role.ENGINE, Role.METRICS, Role.CONTROLLER, Role.ENROLMENT),
)
_CONFINED: Final = TENANT_ROLES | {Role.ENGINE}
MODELS: Final = ("/v1/models", "/v1/models/{model}")


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    roles: frozenset[Role] | None
    """None: anybody, without a key."""


def routes() -> Iterator[Route]:
    """The data plane's, then the others by path."""
    yield from (Route("POST", path, TENANT_ROLES) for path in ENDPOINTS)
    yield from (Route("GET", path, TENANT_ROLES) for path in MODELS)
    rules = access_rules(Settings.model_construct())
    for method, path, _ in operations(openapi()):
        yield Route(method, path, rule_for(rules, path, method).roles)


def page() -> str:
    head = ("route", "no key", *(code(role.value) for role in _COLUMNS))
    rows = ((code(f"{r.method} {r.path}"), *_cells(r)) for r in routes())
    return document("Routes and roles", _INTRO, table(head, rows))


def _cells(route: Route) -> Iterator[str]:
    if route.roles is None:
        yield from ("yes" for _ in range(len(_COLUMNS) + 1))
        return
    yield ""
    for role in _COLUMNS:
        confined = role in _CONFINED and route.path != "/admin/v1/me"
        yield ("own" if confined else "yes") if role in route.roles else ""
