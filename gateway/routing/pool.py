"""The engines as this worker experiences them: health, load, and the leases of its own requests.

Health comes from probes and from what requests meet. Load is what this worker has in flight, which is exact
and immediate, plus what the engine's own metrics show of other workers' requests, a probe old.
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
"""A worker's lease outlives it by at most this."""
RENEW_SECONDS = 1.5
MAX_CONSECUTIVE_FAILURES = 3
STREAK = 3
"""So many failed attempts in a row, and an engine starts slowly again, whatever its probes say: one that
fails fast would otherwise have the least in flight, and draw all requests to itself."""
LOSS_SECONDS = 5.0
"""An attempt that failed on an engine so many seconds before it is found dead was there when it died: vLLM
answers 500 to all that runs when its core dies, and ends after that."""
PROBED_SECONDS = 1.0
"""How long a retry waits to hear whether the engine lives on which the last attempt failed."""
ASK_SECONDS = 0.2
"""Between two probes that failed attempts ask for."""
HOPELESS_SECONDS = 30.0
"""A stream that hangs on a dead engine is ended after this."""
SILENT_SECONDS = 2.0
"""And one that another engine may go on with already after so much silence."""


class Pool:
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
        """What is to be said of an engine that hangs; empty for others."""
        self.on_death: Callable[[str, list[Witness]], None] = lambda _engine, _witnesses: None
        """Told of each engine that died, and what was on it."""
        self._clock = clock
        self._states: dict[str, EngineState] = {}
        self._flushing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Pool {list(self._states.values())}>"

    def reconfigure(self, *, slow_start: float) -> None:
        self._slow_start = slow_start

    def state(self, name: str) -> EngineState | None:
        """The engine's state, following its registration."""
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
                state.standing, state.mark = Standing(), None
            state.engine = engine
        return state

    def states(self) -> list[EngineState]:
        names = [*self._catalog.engines, *(n for n in self._states if n not in self._catalog.engines)]
        states = [s for n in names if (s := self.state(n))]
        self._listed = True  # whatever comes later is new, and not just new to this worker
        return states

    def process(self, engine: Engine) -> str:
        """What tells an engine's process from the one before, as far as this worker knows."""
        state = self.state(engine.name)
        return f"{engine.url} {engine.epoch} {state.began if state else 0}"

    def usable(self, name: str) -> bool:
        state = self.state(name)
        return state is not None and state.usable

    # -- for the decision

    def holders(self, version: Version, failed: set[str]) -> list[Candidate]:
        """The engines that hold the version and can serve it: the common case, made short. One that is
        suspected to hang is the last resort."""
        found: list[Candidate] = []
        doubtful: list[Candidate] = []
        for name in self._residency.holders(version.engine_name):
            state = self.state(name)
            if state and state.usable and name not in failed:
                candidate = self._candidate(state, version, failed, holds=True)
                (doubtful if state.standing.asked else found).append(candidate)
        return found or doubtful

    def fleet(self, base_model: str, version: Version | None, failed: set[str]) -> list[Candidate]:
        """Every engine of the fleet, usable or not, so that a refusal can be explained."""
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
        """Seconds that one more request would wait on the least busy engine that holds it; 0: nothing holds
        it."""
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
        """A lease for one request; None when the engine has gone meanwhile. `trial`: it may be what killed
        an engine, and until it begins to answer others keep away from it."""
        state = self.state(name)
        if state is None:
            return None
        version = served.engine_name if served else ""
        lease = Lease(state, version, self._clock, task=asyncio.current_task(), identity=identity)
        lease.deaths, lease.ends = state.deaths, state.ends
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
        """Tell the store of this worker's leases and uses since the last report."""
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
        """Flush for ever; cancel to stop, then `flush` once more."""
        while True:
            with contextlib.suppress(StoreUnavailableError):  # kept dirty, told on return
                await self.flush()
            await asyncio.sleep(FLUSH_SECONDS)

    # -- health

    def counted(self, state: EngineState, mark: int | None) -> None:
        """What an engine's counters come to now: that they move shows that it works."""
        if mark is not None and state.mark is not None and mark != state.mark:
            state.sign = self._clock()
        state.mark = mark

    def mark_up(self, state: EngineState) -> None:
        if state.healthy is not True:
            log.info("engine %s is up", state.engine.name, extra={"engine": state.engine.name})
            if state.healthy is False or state.new:
                state.slow_from, state.new = self._clock(), False
        state.healthy, state.suspect, state.reason = True, False, ""
        state.consecutive_failures, state.down_since = 0, None
        state.seen_up = self._clock()
        state.tell()

    def failed(self, state: EngineState) -> None:
        """An attempt failed there; an answer sets `streak` to 0 again."""
        state.streak += 1
        if state.streak >= STREAK:
            state.slow_from = self._clock()

    def missed(self, state: EngineState, reason: str) -> None:
        """A probe got no answer in time. A busy engine may miss one: only several in a row mean death."""
        if not state.consecutive_failures:
            state.missed_from = self._clock()
        state.consecutive_failures += 1
        if state.consecutive_failures >= MAX_CONSECUTIVE_FAILURES or state.suspect:
            # When no engine answers any more, it is this worker or its network that hangs.
            others = any(o.seen_up > state.missed_from for o in self._states.values() if o is not state)
            self.mark_down(state, reason, died=others)

    def mark_down(self, state: EngineState, reason: str, *, died: bool = True) -> None:
        """Its requests that have not begun to answer go elsewhere now, not when their sockets notice, and so
        do streams that can go on elsewhere and have fallen silent; the others are given up when it has been
        silent for long. `died`: nobody has ended or removed it."""
        now = self._clock()
        if state.healthy is not False:
            known = self._catalog.engines.get(state.engine.name)
            about = {"engine": state.engine.name}
            if known is None:
                log.info("engine %s was removed from the registry", state.engine.name, extra=about)
            elif known.stopping:
                log.info("engine %s has ended, as its host announced", state.engine.name, extra=about)
            else:
                log.warning("engine %s is down: %s", state.engine.name, reason, extra=about)
            state.down_since = now
            state.ends += 1
            if died and known is not None and known.takes_requests:
                self._died(state, now)
        state.healthy, state.suspect, state.reason = False, False, reason
        state.tell()
        hopeless = state.down_since is not None and now - state.down_since > HOPELESS_SECONDS
        others = self._others(state)
        for lease in list(state.leases):
            silent = now - lease.heard > SILENT_SECONDS
            if hopeless or not lease.begun or (lease.resumable and silent and others):
                lease.abandon("down")

    def _others(self, state: EngineState) -> bool:
        """Whether another engine could go on with what runs there."""
        base = state.engine.base_model
        return any(o.usable and o.engine.base_model == base for o in self._states.values() if o is not state)

    def _died(self, state: EngineState, now: float) -> None:
        state.deaths += 1
        there = [(lease.identity, lease.begun) for lease in state.leases]
        there += [(identity, begun) for at, identity, begun in state.losses if now - at < LOSS_SECONDS]
        state.losses.clear()
        self.on_death(
            state.engine.name, [i.witness(begun=begun) for i, begun in there if i and not i.answered]
        )

    async def probed(self, state: EngineState) -> None:
        """Until a probe has told whether the engine lives, at most PROBED_SECONDS."""
        if state.healthy is False:
            return
        news, wait = state.news, state.asked + ASK_SECONDS - self._clock()
        if wait <= 0:
            state.asked = self._clock()
            state.wake.set()
        else:
            asyncio.get_running_loop().call_later(wait, state.wake.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBED_SECONDS):
                await news.wait()

    # -- keeping suspects apart

    @property
    def in_flight_here(self) -> int:
        """This worker's requests on all engines."""
        return sum(state.in_flight for state in self._states.values())

    def trials(self) -> list[Lease]:
        """Requests in flight that may be what killed an engine."""
        return [lease for state in self._states.values() for lease in state.trials]

    def in_flight(self, identity: RequestIdentity) -> bool:
        """Whether the same request, sent by somebody else, is on an engine now."""
        return any(
            lease.identity.fingerprint == identity.fingerprint
            for state in self._states.values()
            for lease in state.leases
            if lease.identity and lease.identity.group == identity.group
        )

    async def settled(self, seconds: float) -> None:
        """Until a trial has ended somewhere, or so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()

    def _settle(self) -> None:
        self._settled.set()
        self._settled = asyncio.Event()
