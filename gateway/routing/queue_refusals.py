"""Which requests may not wait for a turn, and what they are told. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gateway.admission.fair_queue.fleet_queue import BATCH, FleetQueue
from gateway.errors import FlorinError
from gateway.routing.queue_ticket import QueueTicket


@dataclass(frozen=True, slots=True)
class QueueLimits:
    timeout: float = 30.0
    """Seconds that a request may wait for its turn."""
    of_tenant: int = 1000
    """Requests of one tenant that may wait on this worker."""
    of_worker: int = 5000
    start_timeout: float = 0.0
    """Seconds that a request may wait while no engine of its base model is up; 0: it does not wait for one to
    start."""


DEFAULT_LIMITS: Final = QueueLimits()
START_RETRY_SECONDS: Final = 30
"""When to try again, for requests that cannot wait any longer for an engine to start: nobody knows how long
that takes, and clients cannot wait for much longer than this before they retry."""


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str
    """For the metrics: `tenant_limit`, `worker_limit`, `expected_wait`, `timeout`, `no_engine`."""
    error: FlorinError


def no_room(
    queue: FleetQueue, limits: QueueLimits, ticket: QueueTicket, waiting: int, *, starting: bool
) -> Refusal | None:
    """If too many requests wait already: of the tenant, or on this worker, where `waiting` do. Batches bound
    themselves. `starting`: it waits for an engine to start, which takes minutes: half of the worker's places
    are for requests whose engines are up."""
    if ticket.fills:
        return None
    of_tenant = queue.waiting.waiting(ticket.tenant, BATCH)
    elsewhere = queue.waiting_elsewhere(ticket.tenant) if ticket.queued is not None else 0
    retry_after = START_RETRY_SECONDS if starting else max(1, math.ceil(queue.duration))
    if ticket.queued is not None and of_tenant + elsewhere >= ticket.queued:
        return _tenant_limit(ticket.queued, retry_after)
    if of_tenant >= limits.of_tenant:
        return _tenant_limit(limits.of_tenant, retry_after)
    of_worker = math.ceil(limits.of_worker / 2) if starting else limits.of_worker
    if waiting >= of_worker:
        what = "queued requests" + " while no engine of their base model is up" * starting
        message = f"This worker's limit of {of_worker:,} {what} is reached."
        return Refusal("worker_limit", FlorinError("worker_full", message, retry_after=retry_after))
    return None


def _tenant_limit(limit: int, retry_after: int) -> Refusal:
    message = f"This tenant's limit of {limit:,} queued requests is reached."
    return Refusal("tenant_limit", FlorinError("queue_full", message, retry_after=retry_after))


def too_long(expected: float, patience: float) -> Refusal | None:
    """If the request would wait longer than it may. Both in seconds."""
    if expected <= patience:
        return None
    message = (
        f"Requests like this one currently wait {expected:.0f} s for their turn, more than the limit of "
        f"{max(0.0, patience):g} s."
    )
    return Refusal("expected_wait", FlorinError("overloaded", message, retry_after=math.ceil(expected)))


def timed_out(expected: float, patience: float) -> Refusal:
    """The request has waited as long as it may; the next one would wait for `expected` seconds."""
    message = f"No engine had room for the request within {max(0.0, patience):.3g} s."
    return Refusal("timeout", FlorinError("overloaded", message, retry_after=max(1, math.ceil(expected))))


def not_started(base_model: str, waited: float) -> Refusal:
    """No engine has started while the request waited for one."""
    message = f"No engine of {base_model} is up, and none has started within {waited:.3g} s."
    return Refusal("no_engine", FlorinError("no_engine", message, retry_after=START_RETRY_SECONDS))
