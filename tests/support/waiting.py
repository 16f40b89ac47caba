"""Wait for what happens in other tasks and processes: look often, and say after a while what did not come."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0
"""Only failures take as long. Machines that run tests are busy."""
LOOK_S = 0.01


async def until(true: Callable[[], Any], seconds: float = PATIENCE_S, what: Callable[[], str] = str) -> Any:
    """What `true` returns, or its coroutine, once that is true. `what` explains a failure."""
    deadline = time.monotonic() + seconds
    while True:
        found: Any = true()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"not true within {seconds:g} s: {what()}"
        await asyncio.sleep(LOOK_S)


def until_now(true: Callable[[], Any], seconds: float = PATIENCE_S, what: Callable[[], str] = str) -> Any:
    """The same, where no event loop runs."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"not true within {seconds:g} s: {what()}"
        time.sleep(LOOK_S)
    return found
