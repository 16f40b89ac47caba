"""How far a long operation is, told to a caller who may hang up."""

from __future__ import annotations

import threading

from gateway.schemas.progress import ProgressLine

_MOST_LINES = 100
"""Waiting to be sent; beyond that only the latest step is told."""


class AbandonedError(Exception):
    """Nobody waits for the outcome any more. Raised by Progress in whoever reports to it."""


class OperationProgress:
    """What the work says of itself, from whichever thread it runs on."""

    def __init__(self) -> None:
        # Mutable, under the lock: reports that were not taken yet, the latest of each step, in their order.
        self._lock = threading.Lock()
        self._reports: list[tuple[str, int, int | None]] = []
        self._abandoned = False

    def __call__(self, step: str, done: int, total: int | None) -> None:
        """Raises AbandonedError."""
        with self._lock:
            if self._abandoned:
                raise AbandonedError
            if self._reports and (self._reports[-1][0] == step or len(self._reports) >= _MOST_LINES):
                self._reports.pop()
            self._reports.append((step, done, total))

    def abandon(self) -> None:
        """The work ends at its next report."""
        with self._lock:
            self._abandoned = True

    def take(self) -> list[ProgressLine]:
        with self._lock:
            reports, self._reports = self._reports, []
        return [ProgressLine(step=step, done=done, total=total) for step, done, total in reports]
