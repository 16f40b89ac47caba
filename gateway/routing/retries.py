"""Retries: what the outcome of an attempt means for the request, its engine and all other requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from adapters.placement.requirements import NO_LABELS
from adapters.registry.catalog import Target
from gateway.errors import FlorinError
from gateway.routing.engine_deaths import DeathTracker
from gateway.routing.engine_health import EngineHealth
from gateway.routing.engine_state import Lease
from gateway.routing.prefixes import Blocks
from gateway.routing.queue_ticket import QueueTicket
from gateway.routing.request_identity import RequestIdentity
from gateway.routing.retry_budget import RetryBudget
from gateway.routing.routing_state import MAX_ATTEMPTS, MAX_DETOURS, RoutingState
from gateway.routing.upstream import RetryElsewhere

_FAILURES = {
    "died": "broke off the connection",
    "first_byte": "did not start to answer in time",
    "idle": "stopped sending",
    "malformed": "sent a malformed answer",
    "status_5xx": "answered with an error",
}
"""What an engine did, for callers, by the reason of the retry."""


class Retries:
    """Bounds retries by attempts, by the retry budget and by the request's deadline.

    The lifecycle calls `begin` once per request, and `record_answer` or `record_failure` after each attempt.
    The router calls `check` before it places a request again.
    """

    def __init__(
        self,
        health: EngineHealth,
        budget: RetryBudget,
        *,
        deaths: DeathTracker,
        hangs: DeathTracker,
        timeout: float,
        ttft_deadline: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout`: seconds in which an attempt must find an engine. `ttft_deadline`: seconds from
        the arrival of a request to its first token; 0: no deadline."""
        self._health = health
        self.budget = budget
        self._deaths = deaths
        self._hangs = hangs
        self.timeout = timeout
        self.ttft_deadline = ttft_deadline
        self._clock = clock

    def begin(
        self,
        target: Target,
        identity: RequestIdentity,
        *,
        requires: Mapping[str, str] = NO_LABELS,
        prompt_tokens: int = 0,
        blocks: Blocks = (),
        ticket: QueueTicket | None = None,
    ) -> RoutingState:
        """`requires`: labels that the engine must have. `blocks`: see `blocks_of`."""
        self.budget.request()
        now = self._clock()
        ticket = ticket or QueueTicket()
        state = RoutingState(target, identity, ticket, now + self.timeout, requires, prompt_tokens, blocks)
        ticket.since, ticket.prompt = now, prompt_tokens
        if self.ttft_deadline:
            ticket.answer_by = state.answer_by = now + self.ttft_deadline
            state.deadline = min(state.deadline, state.answer_by)
        return state

    def resume(self, routing_state: RoutingState) -> None:
        """The engine failed in mid-stream: restart the deadline for the next one."""
        routing_state.deadline = self._clock() + self.timeout
        routing_state.answer_by = routing_state.ticket.answer_by = math.inf  # its client has the first token

    def record_answer(self, lease: Lease) -> None:
        """Record an answer, success or refusal: the request did not kill the engine."""
        lease.state.failure_streak = 0
        if lease.identity is not None:
            lease.identity.answered = True
            for tracker in (self._deaths, self._hangs):
                if tracker.suspects.any:
                    tracker.answered(lease.identity)

    def record_failure(self, routing_state: RoutingState, lease: Lease, trouble: RetryElsewhere) -> None:
        """Record a failed attempt. Raises FlorinError if no more attempts or time are left."""
        if trouble.suspect:
            lease.mark_suspect(str(trouble))
        if trouble.engine_worked:
            self._health.record_failed_attempt(lease.state)
        now = self._clock()
        routing_state.record_failure(lease, trouble, deadline=now + self.timeout)
        if routing_state.attempts >= MAX_DETOURS:
            message = (
                f"No engine started to answer for {routing_state.target.label} in {MAX_DETOURS} attempts."
            )
            raise FlorinError("placement_timeout", message, retry_after=1)
        if routing_state.exhausted(now):
            raise self.timeout_error(routing_state.target)

    async def check(self, routing_state: RoutingState, lease: Lease, trouble: RetryElsewhere) -> None:
        """Decide whether to retry a failed attempt. Raises FlorinError if too many attempts of this request,
        or of all requests, have failed. Failures due to an engine's death do not count against requests."""
        routing_state.failed_attempt = None
        state = lease.state
        if trouble.engine_worked:
            await self._health.wait_for_probe(state)
        if state.outages > lease.outages:
            if state.outages_charged != state.outages:
                state.outages_charged = state.outages
                self.budget.charge()
            return
        if not trouble.engine_worked:
            return
        routing_state.failures += 1
        failure = _FAILURES.get(trouble.reason, "failed")
        if routing_state.failures >= MAX_ATTEMPTS:
            raise FlorinError(
                "engine_failed",
                f"All {routing_state.attempts} attempts failed; in the last one, the engine {failure}.",
                retry_after=1,
            )
        if not self.budget.allows():
            raise FlorinError(
                "engine_failed",
                f"The engine {failure}, and the worker's retry budget is exhausted.",
                retry_after=self.budget.wait(),
            )

    def timeout_error(self, target: Target) -> FlorinError:
        return FlorinError(
            "placement_timeout",
            f"No engine started to answer for {target.label} within "
            f"{min(self.timeout, self.ttft_deadline or self.timeout):g} s.",
            retry_after=1,
        )
