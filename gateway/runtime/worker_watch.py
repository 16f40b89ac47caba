"""Deaths and crash loops of workers, as counted by the parent process, and the slots of their metrics."""

from __future__ import annotations

import time
from typing import Final

from gateway.observability.gateway_name import GatewayName
from gateway.observability.shared_values import PARENT, Name, SharedValues

CRASHES: Final = 3
WITHIN: Final = 300.0
"""CRASHES crashes within this many seconds are a crash loop."""

_RESTARTS = Name("counter", "florin_worker_restarts", "florin_worker_restarts_total")
_LOOPING = Name("gauge", "florin_condition", "florin_condition", (("condition", "workers_crash"),), "livemax")


class WorkerWatch:
    """Mutable: the free slots."""

    def __init__(self, workers: int) -> None:
        slots = 2 * workers  # old and new workers may overlap
        self.values = SharedValues.create(slots)
        self.gateway = GatewayName.of_this_process()
        self._free = list(range(PARENT + 1, PARENT + 1 + slots))
        own = self.values.writer(PARENT)
        self._restarts, self._looping = own.value(_RESTARTS), own.value(_LOOPING)

    def __repr__(self) -> str:
        return f"<WorkerWatch {self.values!r}>"

    def acquire(self) -> int:
        """A slot for a worker that is about to start."""
        return self._free.pop(0)

    def release(self, slot: int) -> None:
        """The slot's worker has exited."""
        self.values.mark_dead(slot)
        self._free.append(slot)
        self._free.sort()

    def crashed(self, code: int, now: float | None = None) -> None:
        """Count a crash, with the exit code."""
        self._restarts.inc(1)
        self.values.died(time.monotonic() if now is None else now, code)

    def publish(self, now: float) -> None:
        """Tell the workers whether they are in a crash loop."""
        recent = [died_at for died_at, _ in self.values.deaths() if now - died_at < WITHIN]
        self._looping.set(len(recent) >= CRASHES)

    def close(self) -> None:
        self.values.close()


def crash_loop(values: SharedValues) -> bool:
    """Whether the parent reports a crash loop."""
    return values.of(PARENT, _LOOPING) == 1
