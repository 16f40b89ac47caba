"""Common to the admin routes: authorization, and reading one's own writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from fastapi import Depends, Request, Response

from adapters.errors import StoreUnavailableError
from gateway.api.dependencies import (
    AuditorKey,
    AuditReader,
    ControllerKey,
    HostKey,
    Manager,
    OperatorKey,
    Remover,
    StateDep,
)
from gateway.operations.state import State
from gateway.operations.transaction import Json, catch_up
from gateway.schemas.base import Answer, json_of

T = TypeVar("T")

_TOGETHER: Final = 100
"""Objects of a list that are rendered in one step of the event loop."""


async def _operator(request: Request, key: OperatorKey, state: StateDep) -> None:
    del key  # the dependency has checked it
    await _current(request, state)


async def _manager(request: Request, authority: Manager, state: StateDep) -> None:
    if request.method != "GET":
        authority.check_change()
    await _current(request, state)


async def _remover(request: Request, authority: Remover, state: StateDep) -> None:
    if request.method != "GET":
        authority.check_change()
    await _current(request, state)


async def _controller(request: Request, key: ControllerKey, state: StateDep) -> None:
    del key
    await _current(request, state)


async def _auditor(request: Request, key: AuditorKey, state: StateDep) -> None:
    del key
    await _current(request, state)


async def _own_audit(request: Request, authority: AuditReader, state: StateDep) -> None:
    del authority
    await _current(request, state)


async def _host(request: Request, key: HostKey, state: StateDep) -> None:
    del key
    await _current(request, state)


async def _current(request: Request, state: State) -> None:
    looking = request.method == "GET"
    if looking and not state.follower.connected:
        return  # what this worker remembers may still be looked at
    try:
        await catch_up(state)
    except StoreUnavailableError:
        if not looking:
            raise


def as_it_is(body: Json | Answer) -> Response:
    """For long answers that are asked for often: FastAPI's encoder takes milliseconds for a thousand fields,
    in which the worker serves nobody."""
    return Response(json_of(body), media_type="application/json")


async def listed(
    items: Sequence[T], render: Callable[[T], Any], chosen: Callable[[Any], bool] = lambda _: True
) -> Response:
    """{"data": [...]} of a list that may have thousands of objects: other requests are served meanwhile."""
    parts = []
    for start in range(0, len(items), _TOGETHER):
        rendered = map(render, items[start : start + _TOGETHER])
        parts.append(json_of([answer for answer in rendered if chosen(answer)])[1:-1])
        await asyncio.sleep(0)
    return Response(b'{"data":[%b]}' % b",".join(filter(None, parts)), media_type="application/json")


Operator = Depends(_operator)
"""Dependency of all routers for operators only: requires the role operator, and waits until this worker's
view is current."""
Audited = Depends(_auditor)
"""The same for routes that an auditor may call, too. They only read."""
OwnAudit = Depends(_own_audit)
"""The same for routes that a tenant's own administrator may read, too, as far as its entries go."""
Managed = Depends(_manager)
"""The same for routes that a tenant's own administrator may call, too. Their operations get a `Manager`, and
confine it to its tenant."""
ManagedOrControlled = Depends(_remover)
"""The same, and for a controller."""
Controlled = Depends(_controller)
"""The same as `Operator` for routes that a controller may call, too."""
Host = Depends(_host)
"""The same for routes that an engine's host may also call, with its key of role engine."""
