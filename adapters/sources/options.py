"""What every source is fetched under: limits, patience, and who is told how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, int, int | None], None]
"""`progress(step, done, total)`: bytes, `total` None while unknown. Called from the fetching thread. What it
raises ends the fetch and is passed on, so it may also cancel."""

FETCHING = "fetch"
UNPACKING = "unpack"

CHUNK = 256 * 1024
"""Most bytes of a file in memory at a time."""
_LONGEST_PAUSE = 8.0
_TOLD_BYTES = CHUNK
_TOLD_SECONDS = 0.1


def silent(step: str, done: int, total: int | None) -> None:
    del step, done, total


@dataclass(frozen=True, slots=True)
class FetchOptions:
    max_bytes: int
    """Of adapter_config.json and adapter_model.safetensors together; of a packed archive as well."""
    allow_private: tuple[str, ...] = ()
    """Hosts and networks (CIDR) that http(s) URLs may lead to although they are not public."""
    progress: Progress = silent
    stall_seconds: float = 20.0
    """A connection on which less than 1 KiB a second comes for so long counts as broken."""
    attempts: int = 5
    """Connections in a row that may break, or be refused for the moment, without a byte gained."""
    pause_seconds: float = 0.5
    """Before the second attempt; doubles with each, up to 8 s."""

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures before the last."""
        return min(self.pause_seconds * 2.0**failures, _LONGEST_PAUSE)


class Meter:
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
