"""FastAPI dependencies of the admin and finance routes: the worker's state and the caller's key."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Query, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Cookie, Header, Path
from fastapi.routing import APIRoute

from gateway.dataplane.asgi import SESSION_KEY, AsgiRequest
from gateway.dataplane.exchange import Exchange
from gateway.errors import FlorinError
from gateway.operations.authorization import Authority, actor_of, check_own_engine, check_role
from gateway.operations.state import State
from gateway.operations.unknown_fields import Schema, unknown_field
from gateway.tenants.authentication import authenticate
from gateway.tenants.directory import CONSOLE_ROLES, KEY_ROLES, TENANT_ROLES, Key, Role


def get_state(request: Request) -> State:
    return cast("State", request.app.state.florin)


StateDep = Annotated[State, Depends(get_state)]


def _require(request: Request, state: State, *roles: Role) -> Key:
    key = _holder(request, state, *roles)
    check_query(request)
    return key


def check_query(request: Request) -> None:
    """A misspelled filter that is ignored would show more than what was asked for: everybody's costs."""
    known = _query_parameters(request.scope["route"])
    for name in request.query_params:
        if name not in known:
            schema: Schema = {"properties": {key: {} for key in known}}
            what = unknown_field(schema, (name,)).sentence("parameter")
            raise FlorinError("invalid_value", f"{name}: {what}", param=name)


def _query_parameters(route: APIRoute) -> tuple[str, ...]:
    parameters = get_flat_params(route.dependant)
    return tuple(p.alias for p in parameters if not isinstance(p.field_info, Path | Header | Cookie))


def _holder(request: Request, state: State, *roles: Role) -> Key:
    transport = AsgiRequest(request.scope, request.receive, _no_send)
    exchange = Exchange(transport, session_key=request.scope.get(SESSION_KEY))
    return check_role(authenticate(exchange, state.directory, state.follower), *roles)


def require_operator(request: Request, state: StateDep) -> Key:
    return _require(request, state, Role.OPERATOR)


def require_host(request: Request, state: StateDep) -> Key:
    """An operator's key, or the key of the engine in the path. The route enforces further restrictions of
    engine keys."""
    key = _require(request, state, Role.OPERATOR, Role.ENGINE)
    named = request.path_params.get("name")
    if named is not None:
        check_own_engine(key, named)
    return key


def require_enrolment(request: Request, state: StateDep) -> Key:
    return _require(request, state, Role.ENROLMENT)


def require_metrics(request: Request, state: StateDep) -> Key:
    """Whoever scrapes may send parameters of their own."""
    return _holder(request, state, Role.METRICS, Role.OPERATOR)


def require_staff(request: Request, state: StateDep) -> Key:
    """A finance or operator key, and an auditor's for what only reads."""
    return _require(request, state, *_staff(request))


def require_finance(request: Request, state: StateDep) -> Key:
    """Staff's keys see everything. A tenant's key sees its own rows only: routes must filter by
    `key.own_tenant`."""
    return _require(request, state, *_staff(request), *TENANT_ROLES)


def _staff(request: Request) -> tuple[Role, ...]:
    return Role.FINANCE, Role.OPERATOR, *((Role.AUDITOR,) if request.method == "GET" else ())


def require_console(request: Request, state: StateDep) -> Key:
    """A key of a role that has a console."""
    return _require(request, state, *CONSOLE_ROLES)


def require_customer(request: Request, state: StateDep) -> Key:
    """A tenant's key."""
    return _require(request, state, *TENANT_ROLES)


def require_any(request: Request, state: StateDep) -> Key:
    """A key of any role. An enrolment token is no key yet."""
    return _require(request, state, *KEY_ROLES)


def require_manager(request: Request, state: StateDep) -> Authority:
    """An operator, or a tenant's own administrator. The operation restricts the latter to its tenant."""
    key = _require(request, state, Role.OPERATOR, Role.TENANT_ADMIN)
    authority = Authority.of(key)
    request.state.authority = authority  # exception handlers word errors for its reader
    return authority


def require_controller(request: Request, state: StateDep) -> Key:
    """An operator's or a controller's key. The operation restricts the latter to tenants and adapters."""
    return _require(request, state, Role.OPERATOR, Role.CONTROLLER)


def require_remover(request: Request, state: StateDep) -> Authority:
    """Whoever may list and remove adapters: as `require_manager`, and a controller."""
    key = _require(request, state, Role.OPERATOR, Role.TENANT_ADMIN, Role.CONTROLLER)
    request.state.authority = authority = Authority.of(key)
    return authority


def require_auditor(request: Request, state: StateDep) -> Key:
    """An operator's or an auditor's key, for the audit log."""
    return _require(request, state, Role.OPERATOR, Role.AUDITOR)


def require_own_audit(request: Request, state: StateDep) -> Authority:
    """The same, or a tenant's own administrator, who sees its tenant's entries."""
    return Authority.of(_require(request, state, Role.OPERATOR, Role.AUDITOR, Role.TENANT_ADMIN))


async def _no_send(message: object) -> None:
    raise AssertionError(message)


OperatorKey = Annotated[Key, Depends(require_operator)]
HostKey = Annotated[Key, Depends(require_host)]
EnrolmentKey = Annotated[Key, Depends(require_enrolment)]
MetricsKey = Annotated[Key, Depends(require_metrics)]
StaffKey = Annotated[Key, Depends(require_staff)]
FinanceKey = Annotated[Key, Depends(require_finance)]
ConsoleKey = Annotated[Key, Depends(require_console)]
CustomerKey = Annotated[Key, Depends(require_customer)]
AnyKey = Annotated[Key, Depends(require_any)]
Manager = Annotated[Authority, Depends(require_manager)]
ControllerKey = Annotated[Key, Depends(require_controller)]
Remover = Annotated[Authority, Depends(require_remover)]
AuditorKey = Annotated[Key, Depends(require_auditor)]
AuditReader = Annotated[Authority, Depends(require_own_audit)]


def actor(key: OperatorKey) -> str:
    return actor_of(key)


Actor = Annotated[str, Depends(actor)]
Confirm = Annotated[
    bool,
    Query(
        description="Take prices and rates even if they are at least five times, or at most a fifth of, the "
        "ones before them. Otherwise those are refused with `confirmation_required`."
    ),
]
