"""How far a long operation is, told to a caller who may hang up."""

from __future__ import annotations

import threading

from gateway.operations.transaction import Json

_MOST_LINES = 100
"""Waiting to be sent; beyond that only the latest step is told."""


class AbandonedError(Exception):
    """Nobody waits for the outcome any more. Raised by Progress in whoever reports to it."""


class OperationProgress:
    """What the work says of itself, from whichever thread it runs on."""

    def __init__(self) -> None:
        # Mutable, under the lock: what was said and not yet taken, the latest of each step, in their order.
        self._lock = threading.Lock()
        self._said: list[tuple[str, int, int | None]] = []
        self._abandoned = False

    def __call__(self, step: str, done: int, total: int | None) -> None:
        """Raises AbandonedError."""
        with self._lock:
            if self._abandoned:
                raise AbandonedError
            if self._said and (self._said[-1][0] == step or len(self._said) >= _MOST_LINES):
                self._said.pop()
            self._said.append((step, done, total))

    def abandon(self) -> None:
        """The work ends at its next report."""
        with self._lock:
            self._abandoned = True

    def take(self) -> list[Json]:
        with self._lock:
            said, self._said = self._said, []
        return [{"step": step, "done": done, "total": total} for step, done, total in said]
