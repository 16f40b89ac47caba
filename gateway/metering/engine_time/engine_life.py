"""One engine's life: when it was seen alive, and since when that counts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adapters.model import Engine
from gateway.metering.engine_metrics import EngineSample

BRIDGE = 60_000_000
"""Microseconds. The roll-up closes shorter gaps between two spans of an engine; after a longer gap without a
probe, an engine that is up now may have been down in between."""
_PATIENCE = 30_000_000
"""Microseconds that a life waits for the engine to report its start before it is written without it."""


@dataclass(frozen=True, slots=True)
class Beginnings:
    """Start-up lasts from `startup` to `ready`. `up` is later than `ready` if the engine was down since."""

    startup: int
    ready: int
    up: int


def beginnings(
    *,
    first: int,
    failed: int,
    epoch: int | None,
    ready: int | None,
    registered: int,
    known: int,
    since: int = 0,
) -> Beginnings:
    """Since when an engine first seen up at `first` counts as starting, ready and up.

    `failed`: the last failed probe before that (0: none). `epoch`, `ready`: as the engine reports them.
    `registered`: when it was registered (0: unknown). `known`: the end of its last span in the ledger (0:
    none). `since`: earlier times are by a clock that has been set since, and cannot be compared. Nothing
    begins after `first`, whatever the clocks of other hosts say."""
    if epoch is None or not registered:
        return Beginnings(first, first, first)
    alive = min(first, max(epoch, registered, known, since))
    if ready is None:
        unseen = known < epoch and (failed or epoch > registered)
        ready = first if unseen else alive
    ready = min(first, max(alive, ready))
    return Beginnings(alive, ready, min(first, max(ready, failed)))


@dataclass(slots=True, eq=False)
class EngineLife:
    """Mutable. One engine's uninterrupted life on one set of terms, as this worker saw it."""

    engine: Engine
    first: int
    failed: int
    after: int
    """When this worker last saw an earlier life of the engine."""
    seen: int
    era: int
    """The era of the clock that these times are by."""
    sample: EngineSample | None = None
    """The latest."""
    ended: bool = False
    begun: Beginnings | None = None
    """None: not written yet."""
    written: int = 0
    """`seen`, as the ledger has it."""
    refused: bool = False
    """The ledger's database cannot store it; given up."""

    @property
    def due(self) -> bool:
        """Whether there is something to write, and its beginning is known or will remain unknown."""
        settled = self.begun or self.sample or self.ended or self.seen - self.first > _PATIENCE
        return bool(settled) and self.seen > self.written and not self.refused

    def restarted(self, sample: EngineSample | None) -> bool:
        """Whether `sample` is from another process of the engine."""
        return sample is not None and self.sample is not None and sample.is_of_another_process(self.sample)


def terms_of(engine: Engine) -> dict[str, Any]:
    """What determines the price of its time, and whose it is. Other terms begin another span."""
    return {
        "gpu_type": engine.gpu_type,
        "gpu_count": engine.gpu_count,
        "region": engine.region,
        "purchase": engine.purchase,
        "base_model": engine.base_model,
        "tenant": engine.tenant,
    }
