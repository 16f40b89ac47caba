"""Interrupt a coroutine while it waits for the nth time, for every n: so that no await is left untried."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any


class Interrupted:
    """Runs `coroutine` in the task that awaits this, and calls `interrupt` when it begins to wait for the `at`th
    time. What `interrupt` cancels then is exactly that wait. Mutable: `waits` so far."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, interrupt: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._at = at
        self._interrupt = interrupt
        self.waits = 0

    @property
    def happened(self) -> bool:
        return self.waits >= self._at

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            self.waits += 1
            if self.waits == self._at:
                self._interrupt()
            try:
                value = yield waits_for
            except BaseException as error:  # noqa: BLE001  # passed on, cancellation included
                step = lambda error=error: self._coroutine.throw(error)  # noqa: E731
            else:
                step = lambda value=value: self._coroutine.send(value)  # noqa: E731
