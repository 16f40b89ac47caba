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
"""So long at least: patience is counted in looks, so that it lasts longer where a test itself gets little of the
processor."""


async def until(true: Callable[[], Any], seconds: float = PATIENCE_S, what: Callable[[], str] = str) -> Any:
    """What `true` returns, or its coroutine, once that is true. `what` explains a failure."""
    for _ in range(looks(seconds)):
        found: Any = true()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(LOOK_S)
    raise AssertionError(f"not true within {seconds:g} s: {what()}")


def until_now(true: Callable[[], Any], seconds: float = PATIENCE_S, what: Callable[[], str] = str) -> Any:
    """The same, where no event loop runs."""
    for _ in range(looks(seconds)):
        if found := true():
            return found
        time.sleep(LOOK_S)
    raise AssertionError(f"not true within {seconds:g} s: {what()}")


def looks(seconds: float) -> int:
    return round(seconds / LOOK_S) + 1
