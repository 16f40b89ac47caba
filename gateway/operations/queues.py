"""A tenant's place in the fair queues, for the operator's page."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gateway.admission.fair_queue.fleet_queue import BATCH
from gateway.operations.state import State


@dataclass(frozen=True, slots=True)
class TenantQueue:
    waiting: int
    """Requests that wait for an engine with room, over all workers as last heard."""
    in_flight: int
    """This worker's requests on engines."""
    longest_wait: float
    """Seconds that the oldest of this worker's waiting requests has waited."""
    served_share: float
    """Its share of the weighted tokens served lately (most of it in the last two minutes), all workers
    together, in [0, 1]."""


def queue_of(state: State, tenant: str) -> TenantQueue:
    """Over all base models and priorities."""
    now = time.monotonic()
    waiting = in_flight = 0
    oldest, own, everyone = now, 0.0, 0.0
    for queue in state.router.turns.queues.values():
        waiting += queue.waiting.waiting(tenant, BATCH) + queue.waiting_elsewhere(tenant)
        in_flight += sum(count for (_, name), count in queue.in_flight.items() if name == tenant)
        oldest = min([oldest, *(w.since for w in queue.waiting if w.tenant == tenant)])
        for level in queue.waiting.levels:
            for name, account in level.counters.accounts.items():
                recent = max(0.0, account.recent_at(now))
                everyone += recent
                own += recent if name == tenant else 0.0
    return TenantQueue(waiting, in_flight, now - oldest, own / everyone if everyone > 0 else 0.0)
