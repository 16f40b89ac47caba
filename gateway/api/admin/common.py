"""What the admin routes share: who may call them, reading one's own writes, and changes that conflict."""

from __future__ import annotations

from fastapi import Depends, Request

from adapters.errors import StoreUnavailableError
from gateway.api.dependencies import HostKey, OperatorKey, StateDep
from gateway.operations.state import State
from gateway.operations.transaction import catch_up


async def _operator(request: Request, key: OperatorKey, state: StateDep) -> None:
    del key  # the dependency has checked it
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


Operator = Depends(_operator)
"""On every router here but the hosts': role operator, and views that are up to date."""
Host = Depends(_host)
"""On what an engine's own host may call, with its key of role engine: the same."""
