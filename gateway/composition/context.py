"""What every step of the composition needs."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.config import Settings
from gateway.observability.metrics import Metrics
from gateway.observability.tracing import Tracing
from gateway.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class WorkerContext:
    name: str
    """This worker's name in the store."""
    settings: Settings
    metrics: Metrics
    tracing: Tracing | None
    clock: Clock
    stack: AsyncExitStack
    """Closes what the steps opened, last first."""
