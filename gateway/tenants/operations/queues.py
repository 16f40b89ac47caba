"""A tenant's place in the fair queues, for the operator's page."""

from __future__ import annotations

import time

from gateway.admission.fair_queue.fleet_queue import BATCH
from gateway.operations.state import State
from gateway.tenants.schemas.tenants import Queue


def queue_of(state: State, tenant: str) -> Queue:
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
    return Queue(
        waiting=waiting,
        longest_wait=now - oldest,
        in_flight=in_flight,
        served_share=own / everyone if everyone > 0 else 0.0,
    )
