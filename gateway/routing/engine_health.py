"""Which engines are up, according to probes and failed attempts, and what happens when one goes down.

An engine that hangs counts as up: see `hang_detection`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from gateway.routing.engine_state import EngineState
from gateway.routing.pool import Pool
from gateway.routing.query_of_death import SuspectRequest

log = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3
STREAK = 3
"""Failed attempts in a row after which an engine's slow start begins again, even if it passes probes. An
engine that fails fast would otherwise have the least in flight and attract all requests."""
LOSS_SECONDS = 5.0
"""An attempt that failed within this time before its engine is found dead counts as running when it died:
vLLM answers 500 to all running requests when its core dies, and exits afterwards."""
PROBED_SECONDS = 1.0
"""How long a retry waits to learn whether the engine of the failed attempt is alive."""
ASK_SECONDS = 0.2
"""Minimum time between two probes that failed attempts request."""
HOPELESS_SECONDS = 30.0
"""Time after which a stream on a dead engine is ended."""
SILENT_SECONDS = 2.0
"""The same for a silent stream that another engine can resume."""


class EngineHealth:
    """Marks engines up and down, and abandons the requests on an engine that is down.

    The prober and failed attempts report to it. `on_death` is called with each engine that died and the
    requests on it. Everything runs on the worker's event loop, and nothing here performs I/O.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        on_death: Callable[[str, list[SuspectRequest]], None] = lambda _engine, _requests: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._on_death = on_death
        self._clock = clock
        pool.on_removed = self._removed

    # -- probes

    def mark_up(self, state: EngineState) -> None:
        if state.healthy is not True:
            log.info("Engine %s up", state.engine.name, extra={"engine": state.engine.name})
            if state.healthy is False or state.new:
                state.slow_from, state.new = self._clock(), False
        state.healthy, state.suspect, state.reason = True, False, ""
        state.consecutive_failures, state.down_since = 0, None
        state.seen_up = self._clock()
        state.announce_probe()

    def probe_timed_out(self, state: EngineState, reason: str) -> None:
        """Count a probe that timed out. A busy engine may miss one; several in a row mean that it is dead."""
        if not state.consecutive_failures:
            state.first_missed = self._clock()
        state.consecutive_failures += 1
        if state.consecutive_failures >= MAX_CONSECUTIVE_FAILURES or state.suspect:
            # If no engine answers any more, the problem is this worker or its network.
            others = any(o.seen_up > state.first_missed for o in self._others(state))
            self.mark_down(state, reason, died=others)

    def mark_down(self, state: EngineState, reason: str, *, died: bool = True) -> None:
        """The engine is down. Attempts without an answer are abandoned now, before their sockets notice, and
        so are silent streams that another engine can resume. Other streams are abandoned after
        HOPELESS_SECONDS. `died`: it was neither stopped nor removed."""
        now = self._clock()
        if state.healthy is not False:
            known = self._pool.catalog.engines.get(state.engine.name)
            about = {"engine": state.engine.name}
            if known is None:
                log.info("Engine %s removed from the registry", state.engine.name, extra=about)
            elif known.stopping:
                log.info("Engine %s stopped, as announced by its host", state.engine.name, extra=about)
            else:
                log.warning("Engine %s down: %s", state.engine.name, reason, extra=about)
            state.down_since = now
            state.outages += 1
            state.process_started = 0  # the next process may be another
            if died and known is not None and known.takes_requests:
                self._died(state, now)
        state.healthy, state.suspect, state.reason = False, False, reason
        state.announce_probe()
        self._abandon(state, now)

    def record_counters(self, state: EngineState, mark: int | None) -> None:
        """Record the sum of an engine's counters: a change shows that it works."""
        if mark is not None and state.counter_sum is not None and mark != state.counter_sum:
            state.last_activity = self._clock()
        state.counter_sum = mark

    # -- attempts

    def record_failed_attempt(self, state: EngineState) -> None:
        """Count a failed attempt. Reset by an answer."""
        state.failure_streak += 1
        if state.failure_streak >= STREAK:
            state.slow_from = self._clock()

    async def wait_for_probe(self, state: EngineState) -> None:
        """Wait for a probe to tell whether the engine is alive, at most PROBED_SECONDS."""
        if state.healthy is False:
            return
        if state.probe_done is None:
            state.probe_done = asyncio.Event()
        probe_done, wait = state.probe_done, state.probe_requested + ASK_SECONDS - self._clock()
        if wait <= 0:
            state.probe_requested = self._clock()
            state.probe_soon()
        else:
            asyncio.get_running_loop().call_later(wait, state.probe_soon)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBED_SECONDS):
                await probe_done.wait()

    # -- what follows

    def _removed(self, state: EngineState) -> None:
        self.mark_down(state, "removed from the registry", died=False)

    def _died(self, state: EngineState, now: float) -> None:
        state.deaths += 1
        there = [(lease.identity, lease.begun) for lease in state.leases]
        there += [
            (identity, begun)
            for failed_at, identity, begun in state.recent_failures
            if now - failed_at < LOSS_SECONDS
        ]
        state.recent_failures.clear()
        self._on_death(
            state.engine.name, [i.suspect(begun=begun) for i, begun in there if i and not i.answered]
        )

    def _abandon(self, state: EngineState, now: float) -> None:
        base_model = state.engine.base_model
        others = any(o.usable and o.engine.base_model == base_model for o in self._others(state))
        hopeless = state.down_since is not None and now - state.down_since > HOPELESS_SECONDS
        for lease in list(state.leases):
            silent = now - lease.last_byte_at > SILENT_SECONDS
            if hopeless or not lease.begun or (lease.resumable and silent and others):
                lease.abandon("down")

    def _others(self, state: EngineState) -> list[EngineState]:
        return [other for other in self._pool.known.values() if other is not state]
