"""Watches over silence: of engines, which may hang though they say that they are well, and of single answers.

`ejection` decides; here is what is seen, and what follows. Every worker decides for itself; it tells the
others, who send the engine a probe of their own instead of waiting until their requests hang too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from adapters.errors import EngineError, EngineUnreachableError
from adapters.model import Engine
from adapters.placement.engine_client import EngineClient
from adapters.placement.fingerprint import ProbeAnswer
from gateway.observability.conditions import Condition
from gateway.routing import outlier_ejection
from gateway.routing.engine_deaths import DeathWatch
from gateway.routing.engine_state import EngineState
from gateway.routing.outlier_ejection import Act, Observation, Probe, Rules, Standing
from gateway.routing.pool import Pool

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between looks, at most; at least eight in the time after which an engine hangs."""


class HangObserver(Protocol):
    """Told of it, for the metrics."""

    def engine_hung(self, engine: str, *, hung: bool) -> None: ...

    def engine_ejection(self, engine: str) -> None: ...


class HangWatch:
    def __init__(
        self,
        pool: Pool,
        control: EngineClient,
        observer: HangObserver,
        reports: DeathWatch,
        *,
        rules: Rules,
        first_byte_timeout: float,
        idle_timeout: float,
        spent: Callable[[Engine, ProbeAnswer], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spent`: told of each probe that was answered, for the books."""
        self._pool = pool
        self._control = control
        self._observer = observer
        self.reports = reports
        self.reconfigure(rules=rules, first_byte_timeout=first_byte_timeout, idle_timeout=idle_timeout)
        self._spent = spent
        self._clock = clock
        # Mutable state.
        self._looked = clock()
        self._probes: dict[EngineState, asyncio.Task[Probe]] = {}
        control.guard = self.guard
        pool.hanging = self.words
        reports.on_report = self.accuse

    def reconfigure(self, *, rules: Rules, first_byte_timeout: float, idle_timeout: float) -> None:
        self.rules = rules
        self._first_byte_timeout = first_byte_timeout
        self._idle_timeout = idle_timeout
        self._every = min(LOOK_SECONDS, rules.timeout / 8)

    def __repr__(self) -> str:
        return f"<HangWatch {[c.subject for c in self.conditions()]}>"

    async def run(self) -> None:
        """Look for ever; cancel to stop."""
        for engine in self.reports.fresh():  # told before this worker began
            self.accuse(engine)
        try:
            while True:
                self.look()
                await asyncio.sleep(self._every)
        finally:
            probes = list(self._probes.values())
            self._probes.clear()
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)

    def look(self) -> None:
        now = self._clock()
        # A worker that was stopped, or starved, has not been listening all the while.
        before, self._looked = self._looked, now
        passed = min(now - before, 2 * self._every)
        states = self._pool.states()
        self._limit(states)
        for state in states:
            probe = self._probe_of(state)
            if state.healthy is False:
                state.standing = outlier_ejection.down(state.standing)
                self._observer.engine_hung(state.engine.name, hung=False)
                continue
            seen = Observation(now, passed, state.awaited, state.last_sign() > before, probe)
            old = state.standing
            state.standing, act = outlier_ejection.look(old, seen, self.rules, ejected=state.ejected)
            state.doubtful = state.standing.hangs or state.standing.silent >= self.rules.timeout / 4
            if old.hangs and probe is Probe.FAILED:
                self._still(state)
            self._act(state, act, old)
            self._observer.engine_hung(state.engine.name, hung=state.standing.hangs)
            if now - before <= 2 * self._every:  # else what has come meanwhile has not been read yet
                self._deadlines(state, now)
        for state in self._probes.keys() - set(states):  # removed
            self._probes.pop(state).cancel()

    def _act(self, state: EngineState, act: Act, old: Standing) -> None:
        name = state.engine.name
        match act:
            case Act.PROBE:
                if not old.hangs:
                    log.warning(
                        "Engine %s: no sign of work for %.0f s with %d in flight; probing it",
                        name, state.standing.silent, state.in_flight,
                    )  # fmt: skip
                self._probe(state)
            case Act.EJECT:
                self._limit(self._pool.states())
                self._hangs(state, old.silent)
            case Act.RETURN:
                lasted = self._clock() - (old.since or 0.0)
                log.warning("Engine %s: works again after hanging for %.0f s", name, lasted)
                state.slow_from = self._clock()
                self._limit(self._pool.states())

    def _limit(self, states: list[EngineState]) -> None:
        """Which of those that hang are kept away: see `ejection.who_is_ejected`."""
        able = [s for s in states if s.engine.takes_requests and s.healthy is not False]
        sizes = Counter(s.engine.base_model for s in able)
        ejected = set[str]()
        for base, size in sizes.items():
            fleet = {s.engine.name: s.standing.since for s in able if s.engine.base_model == base}
            hanging = {name: since for name, since in fleet.items() if since is not None}
            ejected |= outlier_ejection.who_is_ejected(hanging, size)
        for state in states:
            state.ejected = state.engine.name in ejected

    # -- what follows

    def _hangs(self, state: EngineState, silent: float) -> None:
        """What waits for it and can be done elsewhere goes elsewhere now."""
        name, standing = state.engine.name, state.standing
        moving = [lease for lease in state.leases if lease.movable]
        log.error(
            "Engine %s hangs: no sign of work for %.0f s, no answer to a probe. %s; %d requests go elsewhere",
            name,
            silent,
            f"Ejected for {standing.until - self._clock():.3g} s" if state.ejected else "Held until it works",
            len(moving),
        )
        state.ends += 1
        if state.ejected:
            self._observer.engine_ejection(name)
        self.reports.died(
            name, [i.witness(begun=lease.begun) for lease in state.leases if (i := lease.identity)]
        )
        for lease in moving:
            lease.abandon("hung")
        for errand in list(state.errands):
            errand.reschedule(asyncio.get_running_loop().time())

    def _still(self, state: EngineState) -> None:
        log.warning("Engine %s: still hangs; next probe in %.0f s", state.engine.name, self.next_probe(state))
        self.reports.died(state.engine.name, [])  # for workers that have come since

    def _deadlines(self, state: EngineState, now: float) -> None:
        """Of single answers, on an engine that works."""
        for lease in list(state.leases):
            if lease.waits_from is None or not lease.streams:
                continue
            idle, age = now - lease.waits_from, now - lease.sent
            if lease.begun and idle > self._idle_timeout:
                log.warning("Engine %s: stream idle for %.0f s; aborting", state.engine.name, idle)
                lease.abandon("idle")
            elif not lease.begun and age > self._first_byte_timeout:
                log.warning("Engine %s: no token for %.0f s; aborting the attempt", state.engine.name, age)
                lease.abandon("first_byte")

    # -- probes

    def _probe(self, state: EngineState) -> None:
        self._probes[state] = asyncio.create_task(self._ask(state), name=f"one token of {state.engine.name}")

    def _probe_of(self, state: EngineState) -> Probe:
        """Told once, when it has ended."""
        task = self._probes.get(state)
        if task is None:
            return Probe.NONE
        if not task.done():
            return Probe.RUNNING
        del self._probes[state]
        return Probe.FAILED if task.cancelled() or task.exception() else task.result()

    async def _ask(self, state: EngineState) -> Probe:
        try:
            answer = await self._control.one_token(state.engine, timeout=self.rules.timeout / 2)
        except EngineUnreachableError:
            return Probe.FAILED
        except EngineError as error:
            return Probe.VOID if error.status and error.status < 500 else Probe.FAILED
        finally:
            state.mark = None  # what the probe has moved is no sign
        self._spent(state.engine, answer)
        return Probe.PASSED

    def accuse(self, engine: str) -> None:
        """Another worker has found that it hangs."""
        state = self._pool.state(engine)
        if state is not None and state not in self._probes and not state.standing.hangs:
            log.warning("Engine %s: hangs, says another worker; probing it", engine)
            state.standing = outlier_ejection.accused(state.standing, self.rules)
            self._probe(state)

    @contextlib.asynccontextmanager
    async def guard(self, engine: Engine) -> AsyncIterator[None]:
        """Around what an engine's core is asked to do: that it does not answer is a sign too, and when it
        hangs, nobody waits for it. Raises EngineUnreachableError."""
        state = self._pool.state(engine.name)
        if state is None:
            yield
            return
        if state.standing.hangs:
            raise EngineUnreachableError(f"{engine.name} hangs")
        try:
            async with asyncio.timeout(None) as limit:
                state.errands.add(limit)
                try:
                    yield
                finally:
                    state.errands.discard(limit)
        except TimeoutError as error:
            raise EngineUnreachableError(f"{engine.name} hangs") from error
        state.sign = self._clock()

    # -- what can be seen

    def conditions(self) -> list[Condition]:
        return [
            Condition("engine_hung", state.engine.name, f"It {words}.")
            for state in self._pool.states()
            if (words := self.words(state))
        ]

    def words(self, state: EngineState) -> str:
        """Empty: it does not hang, or does not even say that it is well."""
        if not state.standing.hangs or state.healthy is False:
            return ""
        return outlier_ejection.words(state.standing, self.rules, self._clock(), ejected=state.ejected)

    def lasted(self, state: EngineState) -> float:
        """Seconds for which it has hung."""
        since = state.standing.since
        return 0.0 if since is None else self._clock() - since

    def next_probe(self, state: EngineState) -> float:
        """Seconds until an engine that hangs is asked whether it works."""
        due = outlier_ejection.next_probe(state.standing, self.rules, ejected=state.ejected)
        return max(0.0, due - self._clock())
