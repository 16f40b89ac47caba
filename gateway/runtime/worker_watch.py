"""What the parent of several workers knows and they do not: who sits where, and how often one died."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from gateway.observability.shared_values import PARENT, Name, SharedValues

CRASHES: Final = 3
"""So many workers that end by themselves …"""
WITHIN: Final = 300.0
"""… in so many seconds are a crash loop."""

_RESTARTS = Name("counter", "florin_worker_restarts", "florin_worker_restarts_total")
_LOOPING = Name("gauge", "florin_condition", "florin_condition", (("condition", "workers_crash"),), "livemax")


class WorkerWatch:
    """Mutable: the seats that nobody has, and when workers ended of late."""

    def __init__(self, workers: int) -> None:
        seats = 2 * workers  # where old and new ones overlap
        self.values = SharedValues.create(seats)
        self._free = list(range(PARENT + 1, PARENT + 1 + seats))
        self._ended = deque[float](maxlen=CRASHES)
        mine = self.values.sit(PARENT)
        self._restarts, self._looping = mine.value(_RESTARTS), mine.value(_LOOPING)

    def __repr__(self) -> str:
        return f"<WorkerWatch {self.values!r}>"

    def take(self) -> int:
        """A seat for a worker that is about to start."""
        return self._free.pop(0)

    def leave(self, seat: int) -> None:
        """Its worker is gone."""
        self.values.dead(seat)
        self._free.append(seat)
        self._free.sort()

    def restarted(self, now: float | None = None) -> None:
        """A worker ended by itself."""
        self._restarts.inc(1)
        self._ended.append(time.monotonic() if now is None else now)

    def look(self, now: float) -> None:
        """Tell the workers whether this is a crash loop."""
        self._looping.set(len(self._ended) == CRASHES and now - self._ended[0] < WITHIN)

    def close(self) -> None:
        self.values.close()


def crash_loop(values: SharedValues) -> bool:
    """As the parent says: a worker that has just started knows nothing of those before it."""
    return values.of(PARENT, _LOOPING) == 1
