"""What the admin routes share: who may call them, and reading one's own writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict

from adapters.errors import StoreUnavailableError
from adapters.store import Change
from gateway.api.deps import OperatorKey, State, StateDep

CATCH_UP_SECONDS = 2.0
ATTEMPTS = 3
"""How often a write is tried anew when somebody else's came first."""

Json = dict[str, Any]


class Body(BaseModel):
    """A request body: unknown fields are refused, so that a slip is not silently without effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)


async def catch_up(state: State) -> None:
    """Wait until this worker knows all that was committed before: the last write may have been answered by
    another worker. Raises StoreUnavailableError."""
    await state.follower.wait_for(await state.store.commit(()), CATCH_UP_SECONDS)


async def commit(state: State, changes: Sequence[Change]) -> None:
    """Commit, and wait until this worker knows it, so that operators read their own writes."""
    await state.follower.wait_for(await state.store.commit(changes), CATCH_UP_SECONDS)


async def _operator(request: Request, key: OperatorKey, state: StateDep) -> None:
    del key  # the dependency has checked it
    try:
        await catch_up(state)
    except StoreUnavailableError:
        if request.method != "GET":  # what this worker remembers may still be looked at
            raise


Operator = Depends(_operator)
"""On every router here: role operator, and views that are up to date."""


def now_micros() -> int:
    return time.time_ns() // 1000
