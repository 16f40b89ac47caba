"""The engines as this worker sees them: their states, and the leases of its own requests.

Health comes from probes and from the errors of requests (see `engine_health`). Load is this worker's own
requests in flight, which is exact and immediate, plus other workers' requests according to the engine's
metrics, which is as old as the last probe (see `candidates`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from adapters.errors import StoreUnavailableError
from adapters.model import Engine, Version
from adapters.placement.policy import Candidate, share_after
from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from adapters.store.protocol import Store, Touch
from gateway.admission.overload import expected_wait
from gateway.routing.engine_state import EngineState, Lease, Use
from gateway.routing.outlier_ejection import Standing
from gateway.routing.query_of_death import Witness
from gateway.routing.request_identity import RequestIdentity

__all__ = ["EngineState", "Lease", "Pool", "Use"]

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.1
LEASE_MS = 5_000
"""A worker's leases outlive it by at most this long."""
RENEW_SECONDS = 1.5
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


class Pool:
    """This worker's view of all registered engines.

    There is one `EngineState` for each engine in the catalog, created when first asked for, and replaced by
    none: an engine that leaves the registry is marked down and forgotten. The router acquires a lease for
    each attempt, and `Lease.end` gives it back exactly once. The prober, the hang detector and failed
    attempts report health. `run` tells the store which versions are in use, so that no other worker evicts
    them; a worker that dies stops doing so, and its leases expire after LEASE_MS.

    All on the worker's event loop; nothing here performs I/O but `flush`.
    """

    def __init__(
        self,
        catalog: Catalog,
        residency: Residency,
        store: Store,
        *,
        worker: str,
        slow_start: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._residency = residency
        self._store = store
        self._worker = worker
        self._slow_start = slow_start
        self._listed = False
        self._settled = asyncio.Event()
        self.hanging: Callable[[EngineState], str] = lambda _state: ""
        """Describes a hung engine; empty for others. Set by the hang detector."""
        self.on_death: Callable[[str, list[Witness]], None] = lambda _engine, _witnesses: None
        """Called with each engine that died and the requests on it."""
        self._clock = clock
        self._states: dict[str, EngineState] = {}
        self._flushing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Pool {list(self._states.values())}>"

    def reconfigure(self, *, slow_start: float) -> None:
        self._slow_start = slow_start

    def state(self, name: str) -> EngineState | None:
        """The engine's state, updated from its registration; None: it is not registered."""
        engine = self._catalog.engines.get(name)
        if engine is None:
            gone = self._states.pop(name, None)
            if gone:
                self.mark_down(gone, "removed from the registry", died=False)
            return None
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = EngineState(engine, new=self._listed)
        elif state.engine is not engine:
            if state.engine.url != engine.url:
                state.healthy, state.suspect, state.new = None, False, True
                state.standing, state.counter_sum = Standing(), None
            state.engine = engine
        return state

    def states(self) -> list[EngineState]:
        names = [*self._catalog.engines, *(n for n in self._states if n not in self._catalog.engines)]
        states = [s for n in names if (s := self.state(n))]
        self._listed = True  # engines that appear later are new to the fleet, not just to this worker
        return states

    def process(self, engine: Engine) -> str:
        """Identifies the engine's current process, as far as this worker knows."""
        state = self.state(engine.name)
        return f"{engine.url} {engine.epoch} {state.process_started if state else 0}"

    def usable(self, name: str) -> bool:
        state = self.state(name)
        return state is not None and state.usable

    # -- candidates

    def holders(self, version: Version, failed: set[str]) -> list[Candidate]:
        """The engines that hold the version and can serve it (the common case, kept fast). Engines that may
        hang are the last resort."""
        found: list[Candidate] = []
        doubtful: list[Candidate] = []
        for name in self._residency.holders(version.engine_name):
            state = self.state(name)
            if state and state.usable and name not in failed:
                candidate = self._candidate(state, version, failed, holds=True)
                (doubtful if state.standing.probed else found).append(candidate)
        return found or doubtful

    def fleet(self, base_model: str, version: Version | None, failed: set[str]) -> list[Candidate]:
        """All engines of the fleet, usable or not, so that a refusal can be explained."""
        return [
            self._candidate(
                state,
                version,
                failed,
                holds=version is not None and self._residency.holds(state.engine.name, version.engine_name),
            )
            for state in self.states()
            if state.engine.base_model == base_model
        ]

    def expected_wait(self, base_model: str, version: Version | None) -> float:
        """Seconds that another request would wait on the least busy engine that holds the version; 0: none
        does."""
        if version is not None:
            names = self._residency.holders(version.engine_name)
            found = [s for name in names if (s := self.state(name)) and s.usable]
        else:
            found = [s for s in self.states() if s.usable and s.engine.base_model == base_model]
        now = self._clock()
        return min((expected_wait(state.load(now)) for state in found), default=0.0)

    def _candidate(
        self, state: EngineState, version: Version | None, failed: set[str], *, holds: bool
    ) -> Candidate:
        engine = state.engine
        name = version.engine_name if version else ""
        use = state.uses.get(name)
        taken = () if holds or version is None else self._residency.slots(engine.name)
        return Candidate(
            engine=engine.name,
            in_flight=state.in_flight + state.in_flight_of_others,
            slots=engine.slots,
            max_rank=engine.max_rank,
            active=sum(1 for u in state.uses.values() if u.in_flight),
            is_active=use is not None and use.in_flight > 0,
            assigned=engine.slots if holds else sum(1 for held in taken if held != name),
            holds=holds,
            healthy=state.healthy is not False and not state.suspect,
            hangs=self.hanging(state) if state.standing.hangs else "",
            cordoned=not engine.takes_adapters,
            draining=not engine.takes_requests,
            failed_before=engine.name in failed,
            pinned=sum(1 for held in taken if held != name and held in self._catalog.pins),
            share=self._share(state),
        )

    def _share(self, state: EngineState) -> float:
        if state.slow_from is None:
            return 1.0
        share = share_after(self._clock() - state.slow_from, self._slow_start)
        if share >= 1:
            state.slow_from = None
        return share

    # -- leases

    def acquire(
        self,
        name: str,
        served: Version | None,
        identity: RequestIdentity | None = None,
        *,
        trial: bool = False,
    ) -> Lease | None:
        """A lease for one request; None: the engine has left the registry. `trial`: the request may have
        killed an engine, so other suspects avoid this engine until it is answered."""
        state = self.state(name)
        if state is None:
            return None
        version = served.engine_name if served else ""
        lease = Lease(state, version, self._clock, task=asyncio.current_task(), identity=identity)
        lease.deaths, lease.outages = state.deaths, state.outages
        if trial:
            lease.on_trial = self._settle
            state.trials.add(lease)
        state.in_flight += 1
        state.leases.add(lease)
        if version:
            use = state.uses.get(version)
            if use is None:
                use = state.uses[version] = Use()
            use.in_flight += 1
            use.last_used = self._clock()
            use.dirty = True
        return lease

    async def flush(self) -> None:
        """Report this worker's leases and uses since the last report to the store."""
        async with self._flushing:
            now = self._clock()
            reported: list[tuple[Use, int]] = []
            touches: list[Touch] = []
            for state in self._states.values():
                for version, use in list(state.uses.items()):
                    due = use.in_flight > 0 and now - use.reported > RENEW_SECONDS
                    if use.dirty or due:
                        age = int((now - use.last_used) * 1000)
                        touches.append(Touch(state.engine.name, version, age, use.in_flight))
                        reported.append((use, use.in_flight))
                        use.dirty = False
                    elif use.in_flight == 0 and now - use.last_used > 60:
                        del state.uses[version]
            if not touches:
                return
            try:
                await self._store.touch(self._worker, touches, ttl_ms=LEASE_MS)
            except BaseException:  # a cancellation too
                for use, _ in reported:
                    use.dirty = True
                raise
            for use, _ in reported:
                use.reported = now

    async def run(self) -> None:
        """Flush until cancelled. Call `flush` once more afterwards."""
        while True:
            with contextlib.suppress(StoreUnavailableError):  # stays dirty, and is reported later
                await self.flush()
            await asyncio.sleep(FLUSH_SECONDS)

    # -- health

    def record_counters(self, state: EngineState, mark: int | None) -> None:
        """Record the sum of an engine's counters: a change shows that it works."""
        if mark is not None and state.counter_sum is not None and mark != state.counter_sum:
            state.last_activity = self._clock()
        state.counter_sum = mark

    def mark_up(self, state: EngineState) -> None:
        if state.healthy is not True:
            log.info("Engine %s up", state.engine.name, extra={"engine": state.engine.name})
            if state.healthy is False or state.new:
                state.slow_from, state.new = self._clock(), False
        state.healthy, state.suspect, state.reason = True, False, ""
        state.consecutive_failures, state.down_since = 0, None
        state.seen_up = self._clock()
        state.announce_probe()

    def record_failed_attempt(self, state: EngineState) -> None:
        """Count a failed attempt. Reset by an answer."""
        state.failure_streak += 1
        if state.failure_streak >= STREAK:
            state.slow_from = self._clock()

    def probe_timed_out(self, state: EngineState, reason: str) -> None:
        """Count a probe that timed out. A busy engine may miss one; several in a row mean that it is dead."""
        if not state.consecutive_failures:
            state.first_missed = self._clock()
        state.consecutive_failures += 1
        if state.consecutive_failures >= MAX_CONSECUTIVE_FAILURES or state.suspect:
            # If no engine answers any more, the problem is this worker or its network.
            others = any(o.seen_up > state.first_missed for o in self._states.values() if o is not state)
            self.mark_down(state, reason, died=others)

    def mark_down(self, state: EngineState, reason: str, *, died: bool = True) -> None:
        """The engine is down. Attempts without an answer are abandoned now, before their sockets notice, and
        so are silent streams that another engine can resume. Other streams are abandoned after
        HOPELESS_SECONDS. `died`: it was neither stopped nor removed."""
        now = self._clock()
        if state.healthy is not False:
            known = self._catalog.engines.get(state.engine.name)
            about = {"engine": state.engine.name}
            if known is None:
                log.info("Engine %s removed from the registry", state.engine.name, extra=about)
            elif known.stopping:
                log.info("Engine %s stopped, as announced by its host", state.engine.name, extra=about)
            else:
                log.warning("Engine %s down: %s", state.engine.name, reason, extra=about)
            state.down_since = now
            state.outages += 1
            if died and known is not None and known.takes_requests:
                self._died(state, now)
        state.healthy, state.suspect, state.reason = False, False, reason
        state.announce_probe()
        hopeless = state.down_since is not None and now - state.down_since > HOPELESS_SECONDS
        others = self._others(state)
        for lease in list(state.leases):
            silent = now - lease.last_byte_at > SILENT_SECONDS
            if hopeless or not lease.begun or (lease.resumable and silent and others):
                lease.abandon("down")

    def _others(self, state: EngineState) -> bool:
        """Whether another engine could take over its requests."""
        base = state.engine.base_model
        return any(o.usable and o.engine.base_model == base for o in self._states.values() if o is not state)

    def _died(self, state: EngineState, now: float) -> None:
        state.deaths += 1
        there = [(lease.identity, lease.begun) for lease in state.leases]
        there += [
            (identity, begun) for at, identity, begun in state.recent_failures if now - at < LOSS_SECONDS
        ]
        state.recent_failures.clear()
        self.on_death(
            state.engine.name, [i.witness(begun=begun) for i, begun in there if i and not i.answered]
        )

    async def wait_for_probe(self, state: EngineState) -> None:
        """Wait for a probe to tell whether the engine is alive, at most PROBED_SECONDS."""
        if state.healthy is False:
            return
        probe_done, wait = state.probe_done, state.probe_requested + ASK_SECONDS - self._clock()
        if wait <= 0:
            state.probe_requested = self._clock()
            state.wake.set()
        else:
            asyncio.get_running_loop().call_later(wait, state.wake.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBED_SECONDS):
                await probe_done.wait()

    # -- suspects

    @property
    def in_flight_here(self) -> int:
        """This worker's requests on all engines."""
        return sum(state.in_flight for state in self._states.values())

    def trials(self) -> list[Lease]:
        """Leases of requests that may have killed an engine."""
        return [lease for state in self._states.values() for lease in state.trials]

    def in_flight(self, identity: RequestIdentity) -> bool:
        """Whether an identical request is on an engine now."""
        return any(
            lease.identity.fingerprint == identity.fingerprint
            for state in self._states.values()
            for lease in state.leases
            if lease.identity and lease.identity.group == identity.group
        )

    async def wait_for_trial(self, seconds: float) -> None:
        """Wait until a trial has ended, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()

    def _settle(self) -> None:
        self._settled.set()
        self._settled = asyncio.Event()
