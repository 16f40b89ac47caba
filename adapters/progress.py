"""How far a long piece of work is, told to whoever watches it."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""`progress(step, done, total)`: bytes, `total` None while unknown. Called from the fetching thread. What it
raises ends the fetch and is passed on, so it may also cancel."""


CHUNK = 256 * 1024
"""Most bytes of a file in memory at a time."""


_TOLD_BYTES = CHUNK
_TOLD_SECONDS = 0.1


def silent(step: str, done: int, total: int | None) -> None:
    del step, done, total


class ProgressMeter:
    """Tells `progress` of bytes, at most every 256 KiB or 0.1 s, whichever comes first."""

    def __init__(self, step: str, progress: Progress, total: int | None = None) -> None:
        self._step = step
        self._progress = progress
        self._told = (0, time.monotonic())  # mutable: bytes and time of the last call
        self.total = total
        self.done = 0

    def add(self, size: int) -> None:
        """`size` may be negative: what came is fetched anew."""
        self.done += size
        done, at = self._told
        if abs(self.done - done) >= _TOLD_BYTES or time.monotonic() - at >= _TOLD_SECONDS:
            self.tell()

    def expect(self, size: int) -> None:
        """So many bytes are to come now."""
        self.total = self.done + size

    def tick(self) -> None:
        """Nothing new, but somebody may be watching, or wish to end it."""
        self.add(0)

    def tell(self) -> None:
        self._told = (self.done, time.monotonic())
        self._progress(self._step, self.done, self.total)
