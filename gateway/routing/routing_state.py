"""What has happened to a request on its way to an engine. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from adapters.placement.scheduling.prefix_cache import Seen
from adapters.placement.scheduling.view import Pick
from adapters.registry.catalog import Target
from gateway.routing.canary_counts import ComparedRequest
from gateway.routing.decision_log import AT_ONCE, Search
from gateway.routing.engine_state import EngineState, Lease
from gateway.routing.prefixes import Blocks
from gateway.routing.query_of_death import REQUEST_DEATHS
from gateway.routing.queue_ticket import QueueTicket
from gateway.routing.request_identity import RequestIdentity
from gateway.routing.upstream import RetryElsewhere

MAX_ATTEMPTS = 3
"""Failed attempts on engines that may have worked on the request and are still alive."""
TIMER_SECONDS = 0.002
"""A timer may fire this much early."""
MAX_DETOURS = 20
"""All attempts, including those that cost engines nothing: unknown model, busy, connection refused."""


@dataclass(slots=True)
class RoutingState:
    """The routing state of one request. Mutable: `Router`, `Retries` and `SuspectIsolation` change it."""

    target: Target
    identity: RequestIdentity
    ticket: QueueTicket
    """Its place in the fair queue."""
    deadline: float
    """When the next attempt must have found an engine."""
    requires: Mapping[str, str] = field(default_factory=dict)
    """Labels that the engine must have, for the caller and for the adapter's owner."""
    prompt_tokens: int = 0
    """Estimated."""
    blocks: Blocks = ()
    """See `blocks_of`."""
    seen: Mapping[str, Seen] | None = None
    """What engines had seen of the prompt when it came; None: not looked up yet."""
    attempts: int = 0
    failures: int = 0
    """Attempts that failed on live engines which may have worked on the request."""
    failed_on: set[str] = field(default_factory=set)
    answer_by: float = math.inf
    """When a stream's first token must have arrived."""
    pick: Pick | None = None
    """The scheduler's last decision."""
    no_room_on: set[str] = field(default_factory=set)
    """Engines that just had no slot for another replica."""
    no_room_until: float = 0.0
    """When to try these again."""
    reload_on: str | None = None
    """An engine that does not hold the version although it should: load it there again."""
    loads: int = 0
    """Adapter loads caused by the next attempt."""
    loading: float = 0.0
    """Seconds that it has waited for adapter loads, for all attempts."""
    search: Search = AT_ONCE
    """The last one."""
    losses: list[tuple[EngineState, int]] = field(default_factory=list)
    """Engines on which it failed, each with its `deaths` when the attempt began."""
    failed_attempt: tuple[Lease, RetryElsewhere] | None = None
    """The last failed attempt, if it is not yet decided whether to retry it."""
    compared: tuple[ComparedRequest, ...] = ()
    """Count its outcome, if its adapter has a canary, or its fleet engines on trial."""
    lot: float | None = None
    """See `Ask`; None: not drawn."""
    isolation_deadline: float | None = None
    """When it stops waiting for an engine without suspects."""

    @property
    def waited(self) -> float:
        """Seconds for which it has waited for room, and for adapter loads."""
        return self.ticket.waited + self.loading

    @property
    def deadly(self) -> bool:
        """Whether so many engines died while they had the request that it must not be retried."""
        return sum(state.deaths > before for state, before in self.losses) >= REQUEST_DEATHS

    def exhausted(self, now: float) -> bool:
        """Whether no more time is left."""
        return now > self.deadline or now >= self.answer_by - TIMER_SECONDS

    def record_failure(self, lease: Lease, trouble: RetryElsewhere, *, deadline: float) -> None:
        """Record a failed attempt. `deadline`: the new one, if time was spent waiting for an answer and not
        for an engine."""
        engine = lease.state.engine.name
        # (The base model cannot be loaded, so an engine without it is useless.)
        if trouble.unknown_model and self.target.version and engine not in self.failed_on:
            self.reload_on = engine
        else:
            self.failed_on.add(engine)
        if lease.abandoned == "deadline":
            return  # it was the request's time that ran out, and no fault of the engine
        if lease.abandoned:
            self.deadline = max(self.deadline, deadline)
        if trouble.engine_worked or lease.abandoned:
            self.losses.append((lease.state, lease.deaths))
            self.failed_attempt = lease, trouble
