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
from dataclasses import dataclass, field

from adapters.catalog import Catalog
from adapters.errors import StoreUnavailableError
from adapters.model import Engine, Version
from adapters.placement import Candidate, share_after
from adapters.residency import Residency
from adapters.store import Store, Touch

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.1
LEASE_MS = 5_000
"""A worker's lease outlives it by at most this."""
RENEW_SECONDS = 1.5
LOOK_SECONDS = 1.0
STRIKES = 3
STREAK = 3
"""So many failed attempts in a row, and an engine starts slowly again, whatever its probes say: one that
fails fast would otherwise have the least in flight, and draw all requests to itself."""
HOPELESS_SECONDS = 30.0
"""A stream that hangs on a dead engine is ended after this."""


@dataclass(slots=True)
class Use:
    """This worker's use of one version on one engine."""

    in_flight: int = 0
    last_used: float = 0.0
    reported: float = -1e9
    """When the store was last told, on the same clock."""
    dirty: bool = False


@dataclass(slots=True, eq=False)
class Lease:
    """One request in flight on one engine. Ends exactly once: `end` is idempotent."""

    state: EngineState
    version: str
    clock: Callable[[], float]
    begun: bool = False
    """The answer has begun to reach the client: the request can no longer go elsewhere."""
    abandoned: bool = False
    """The engine was found dead; the request's task has been cancelled so that it goes elsewhere."""
    task: asyncio.Task[object] | None = None
    ended: bool = False
    heard: float | None = None
    """When its stream last said something; None while that would mean nothing."""

    def begin(self) -> None:
        """The answer begins to reach the client."""
        self.begun = True

    def abandon(self) -> None:
        """Wake the request's task, which finds `abandoned` and goes elsewhere or ends its stream."""
        if not self.abandoned and self.task is not None:
            self.abandoned = True
            self.task.cancel()

    def doubt(self, reason: str) -> None:
        """The engine refused or broke a connection: nobody uses it until a probe has passed."""
        if not self.state.suspect:
            log.warning("engine %s is suspect: %s", self.state.engine.name, reason)
        self.state.suspect = True
        self.state.reason = reason
        self.state.wake.set()

    def end(self) -> None:
        if self.ended:
            return
        self.ended = True
        state = self.state
        state.in_flight -= 1
        state.leases.discard(self)
        use = state.uses.get(self.version)
        if use is not None:
            use.in_flight -= 1
            use.last_used = self.clock()
            use.dirty = True


@dataclass(slots=True, eq=False)
class EngineState:
    """Mutable: everything this worker knows about one engine beyond its registration."""

    engine: Engine
    healthy: bool | None = None
    """None: not probed yet."""
    suspect: bool = False
    """A request failed on it; a probe will tell."""
    in_flight: int = 0
    elsewhere: int = 0
    """Requests of other workers, by the engine's own metrics at the last probe."""
    running: int = 0
    waiting: int = 0
    began: int = 0
    """When its process began, as it said last; Unix microseconds; 0: it has not said."""
    uses: dict[str, Use] = field(default_factory=dict)
    leases: set[Lease] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to probe at once."""
    reason: str = ""
    """Why it is unhealthy."""
    strikes: int = 0
    """Probes in a row that got no answer."""
    down_since: float | None = None
    new: bool = False
    """It came while this worker was running, and has not been seen up."""
    slow_from: float | None = None
    """When its slow start began; None: long ago."""
    streak: int = 0
    """Attempts in a row that failed on it."""

    @property
    def usable(self) -> bool:
        """Unprobed engines are tried: a new worker should not refuse what it has not looked at."""
        return self.healthy is not False and not self.suspect and self.engine.takes_requests

    def __repr__(self) -> str:
        return f"<{self.engine.name} healthy={self.healthy} in_flight={self.in_flight}>"


class Pool:
    def __init__(
        self,
        catalog: Catalog,
        residency: Residency,
        store: Store,
        *,
        worker: str,
        idle_timeout: float = 600.0,
        slow_start: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._residency = residency
        self._store = store
        self._worker = worker
        self._idle_timeout = idle_timeout
        self._slow_start = slow_start
        self._listed = False
        self._next_look = 0.0
        self._clock = clock
        self._states: dict[str, EngineState] = {}
        self._flushing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Pool {list(self._states.values())}>"

    def state(self, name: str) -> EngineState | None:
        """The engine's state, following its registration."""
        engine = self._catalog.engines.get(name)
        if engine is None:
            gone = self._states.pop(name, None)
            if gone:
                self.mark_down(gone, "removed from the registry")
            return None
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = EngineState(engine, new=self._listed)
        elif state.engine is not engine:
            if state.engine.url != engine.url:
                state.healthy, state.suspect, state.new = None, False, True
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
        """The engines that hold the version and can serve it: the common case, made short."""
        found = []
        for name in self._residency.holders(version.engine_name):
            state = self.state(name)
            if state and state.usable and name not in failed:
                found.append(self._candidate(state, version, failed, holds=True))
        return found

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

    def _candidate(
        self, state: EngineState, version: Version | None, failed: set[str], *, holds: bool
    ) -> Candidate:
        engine = state.engine
        name = version.engine_name if version else ""
        use = state.uses.get(name)
        taken = () if holds or version is None else self._residency.slots(engine.name)
        return Candidate(
            engine=engine.name,
            in_flight=state.in_flight + state.elsewhere,
            slots=engine.slots,
            max_rank=engine.max_rank,
            active=sum(1 for u in state.uses.values() if u.in_flight),
            is_active=use is not None and use.in_flight > 0,
            assigned=engine.slots if holds else sum(1 for held in taken if held != name),
            holds=holds,
            healthy=state.healthy is not False and not state.suspect,
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

    def acquire(self, name: str, served: Version | None) -> Lease | None:
        """A lease for one request; None when the engine has gone meanwhile."""
        state = self.state(name)
        if state is None:
            return None
        version = served.engine_name if served else ""
        lease = Lease(state, version, self._clock, task=asyncio.current_task())
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
        """Flush and watch for ever; cancel to stop, then `flush` once more."""
        while True:
            with contextlib.suppress(StoreUnavailableError):  # kept dirty, told on return
                await self.flush()
            self.give_up_silent()
            await asyncio.sleep(FLUSH_SECONDS)

    def give_up_silent(self) -> None:
        """Streams that have said nothing for too long. One look at all, now and then, costs less than a
        timer for each of their packets."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        for state in self._states.values():
            for lease in list(state.leases):
                if lease.heard is not None and now - lease.heard > self._idle_timeout:
                    log.warning("engine %s has let a stream hang", state.engine.name)
                    lease.abandon()

    # -- health

    def mark_up(self, state: EngineState) -> None:
        if state.healthy is not True:
            log.info("engine %s is up", state.engine.name)
            if state.healthy is False or state.new:
                state.slow_from, state.new = self._clock(), False
        state.healthy, state.suspect, state.reason = True, False, ""
        state.strikes, state.down_since = 0, None

    def failed(self, state: EngineState) -> None:
        """An attempt failed there; an answer sets `streak` to 0 again."""
        state.streak += 1
        if state.streak >= STREAK:
            state.slow_from = self._clock()

    def missed(self, state: EngineState, reason: str) -> None:
        """A probe got no answer in time. A busy engine may miss one: only several in a row mean death."""
        state.strikes += 1
        if state.strikes >= STRIKES or state.suspect:
            self.mark_down(state, reason)

    def mark_down(self, state: EngineState, reason: str) -> None:
        """Its requests that have not begun to answer go elsewhere now, not when their sockets notice; the
        others are given up when it has been silent for long."""
        now = self._clock()
        if state.healthy is not False:
            log.warning("engine %s is down: %s", state.engine.name, reason)
            state.down_since = now
        state.healthy, state.suspect, state.reason = False, False, reason
        hopeless = state.down_since is not None and now - state.down_since > HOPELESS_SECONDS
        for lease in list(state.leases):
            if hopeless or not lease.begun:
                lease.abandon()
