"""Progress reports of long-running work."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""`progress(step, done, total)` in bytes; `total` is None while unknown. Called from the fetching thread. An
exception that it raises aborts the fetch and propagates, so it can be used to cancel."""


CHUNK = 256 * 1024
"""Bytes of a file held in memory at a time."""


_TOLD_BYTES = CHUNK
_TOLD_SECONDS = 0.1


def silent(step: str, done: int, total: int | None) -> None:
    del step, done, total


class ProgressMeter:
    """Reports bytes to `progress`, at most every 256 KiB or 0.1 s, whichever comes first."""

    def __init__(self, step: str, progress: Progress, total: int | None = None) -> None:
        self._step = step
        self._progress = progress
        self._reported = (0, time.monotonic())  # mutable: bytes and time of the last call
        self.total = total
        self.done = 0

    def add(self, size: int) -> None:
        """`size` is negative when bytes are discarded to be fetched again."""
        self.done += size
        done, reported_at = self._reported
        if abs(self.done - done) >= _TOLD_BYTES or time.monotonic() - reported_at >= _TOLD_SECONDS:
            self.tell()

    def expect(self, size: int) -> None:
        """Set the total to the bytes done plus `size` more."""
        self.total = self.done + size

    def tick(self) -> None:
        """Report without new bytes, so that watchers see a sign of life and can cancel."""
        self.add(0)

    def tell(self) -> None:
        self._reported = (self.done, time.monotonic())
        self._progress(self._step, self.done, self.total)
