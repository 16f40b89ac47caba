"""One request's place in the queue for engines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from adapters.placement.scheduling.view import EngineView
from gateway.admission.fair_queue.fleet_queue import BATCH, Charge
from gateway.tenants.directory import Tenant
from gateway.tenants.terms import Priority

LEVELS: Final = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
NAMES: Final = (*LEVELS, "batch")
"""Names of the queue's classes, highest first."""


@dataclass(slots=True, eq=False)
class QueueTicket:
    """One request's place in the queue, and its turns. Mutable; `Turns` changes it."""

    tenant: str = ""
    weight: float = 1.0
    level: int = 1
    queued: int | None = None
    """How many requests of its tenant may wait, over all workers."""
    prompt: int = 0
    since: float = 0.0
    """From when it may have waited for an engine that holds its adapter: when it came, or when that was
    loaded."""
    answer_by: float = math.inf
    """When its answer must have started."""
    had_turn: bool = False
    charge: Charge | None = None
    """The charge for its turn, until that becomes a lease."""
    place: EngineView | None = None
    """The engine on which a place is kept for it."""
    waited: float = 0.0
    """Seconds spent waiting for turns."""

    @property
    def fills(self) -> bool:
        """Whether it only fills what is idle."""
        return self.level == BATCH


def queue_ticket(tenant: Tenant, level: int) -> QueueTicket:
    return QueueTicket(tenant.name, tenant.weight, level, tenant.limits.queued)
