"""Detects engines that hang although they pass health checks, and requests that engines have lost.

`outlier_ejection` and `lost_requests` make the decisions; this module collects the observations and acts.
Each worker decides for itself and tells the others, which then probe the engine without waiting for their own
requests to hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from adapters.errors import EngineError, EngineUnreachableError
from adapters.model import Engine
from adapters.placement.engine_client import EngineClient
from adapters.placement.fingerprint import ProbeAnswer
from gateway.observability.conditions import Condition
from gateway.routing import outlier_ejection
from gateway.routing.engine_deaths import DeathTracker
from gateway.routing.engine_state import EngineState, Lease
from gateway.routing.lost_requests import Patience, Wait, judge
from gateway.routing.outlier_ejection import Action, EjectionState, Observation, Probe, Rules
from gateway.routing.pool import Pool

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Maximum time between checks. There are at least eight checks within the hang timeout."""


class HangObserver(Protocol):
    """Notified for the metrics."""

    def engine_hung(self, engine: str, *, hung: bool) -> None: ...

    def engine_ejection(self, engine: str) -> None: ...


class HangDetector:
    """Detects hung engines, ejects them, and brings them back.

    `run` checks every engine about once a second: it feeds the observations into `outlier_ejection`, sends
    one-token probes in tasks of their own, and abandons the leases on engines that hang, or that
    `lost_requests` gives up. It alone writes `EngineState.ejection`, `ejected`, `doubtful` and `inactive`.

    Control calls to engines, such as loads, run inside `guard`: they end when the engine is found to hang,
    and their success counts as activity. Everything runs on the worker's event loop.
    """

    def __init__(
        self,
        pool: Pool,
        control: EngineClient,
        observer: HangObserver,
        reports: DeathTracker,
        *,
        rules: Rules,
        patience: Patience,
        spent: Callable[[Engine, ProbeAnswer], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spent`: called with each answered probe, for metering."""
        self._pool = pool
        self._control = control
        self._observer = observer
        self.reports = reports
        self.reconfigure(rules=rules, patience=patience)
        self._spent = spent
        self._clock = clock
        # Mutable state.
        self._looked = clock()
        self._probes: dict[EngineState, asyncio.Task[Probe]] = {}
        self._shown: dict[EngineState, bool] = {}
        """Whether each hangs, as the observer was last notified."""
        control.guard = self.guard
        reports.on_report = self.on_report

    def reconfigure(self, *, rules: Rules, patience: Patience) -> None:
        self.rules = rules
        self.patience = patience
        self._every = min(LOOK_SECONDS, rules.timeout / 8)

    def __repr__(self) -> str:
        return f"<HangDetector {[c.subject for c in self.conditions()]}>"

    async def run(self) -> None:
        """Check until cancelled."""
        for engine in self.reports.fresh():  # reported before this worker started
            self.on_report(engine)
        try:
            while True:
                self.check()
                await asyncio.sleep(self._every)
        finally:
            probes = list(self._probes.values())
            self._probes.clear()
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)

    def check(self) -> None:
        now = self._clock()
        # A worker that was suspended or starved was not observing all the time.
        before, self._looked = self._looked, now
        passed = min(now - before, 2 * self._every)
        states = self._pool.states()
        self._limit(states)
        for state in states:
            probe = self._probe_of(state)
            if state.healthy is False:
                state.ejection = outlier_ejection.down(state.ejection)
                self._show(state, hung=False)
                continue
            moved = state.last_sign() > before
            state.inactive = 0.0 if moved else state.inactive + passed
            if state.ejection.calm and probe is Probe.NONE and not state.has_waiters:
                state.doubtful = False  # most engines, most of the time
                self._show(state, hung=False)
                continue
            seen = Observation(now, passed, state.has_waiters, moved, probe)
            old = state.ejection
            state.ejection, act = outlier_ejection.evaluate(old, seen, self.rules, ejected=state.ejected)
            state.doubtful = state.ejection.hangs or state.ejection.silent >= self.rules.timeout / 4
            if old.hangs and probe is Probe.FAILED:
                self._still(state)
            self._act(state, act, old)
            self._show(state, hung=state.ejection.hangs)
            if now - before <= 2 * self._every:  # otherwise data that arrived meanwhile is still unread
                self._give_up_lost(state, now)
        removed = (self._probes.keys() | self._shown.keys()) - set(states)
        for state in removed:
            self._shown.pop(state, None)
            if (running := self._probes.pop(state, None)) is not None:
                running.cancel()

    def _show(self, state: EngineState, *, hung: bool) -> None:
        if self._shown.get(state) is not hung:
            self._shown[state] = hung
            self._observer.engine_hung(state.engine.name, hung=hung)

    def _act(self, state: EngineState, act: Action, old: EjectionState) -> None:
        name = state.engine.name
        match act:
            case Action.PROBE:
                if not old.hangs:
                    log.warning(
                        "Engine %s: no sign of work for %.0f s with %d in flight; probing it",
                        name, state.ejection.silent, state.in_flight,
                    )  # fmt: skip
                self._probe(state)
            case Action.EJECT:
                self._limit(self._pool.states())
                self._hangs(state, old.silent)
            case Action.RETURN:
                lasted = self._clock() - (old.since or 0.0)
                log.warning("Engine %s recovered after hanging for %.0f s", name, lasted)
                state.slow_from = self._clock()
                self._limit(self._pool.states())

    def _limit(self, states: list[EngineState]) -> None:
        """Update which hung engines are ejected: see `outlier_ejection.who_is_ejected`."""
        able = [s for s in states if s.engine.takes_requests and s.healthy is not False]
        hanging: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for state in able:
            if (since := state.ejection.since) is not None:
                hanging[state.engine.base_model][state.engine.name] = since
        sizes = Counter(s.engine.base_model for s in able) if hanging else {}
        ejected = set[str]()
        for base, fleet in hanging.items():
            ejected |= outlier_ejection.who_is_ejected(fleet, sizes[base])
        for state in states:
            state.ejected = state.engine.name in ejected

    # -- what follows

    def _hangs(self, state: EngineState, silent: float) -> None:
        """Abandon everything on the engine that another engine can take over."""
        name, ejection = state.engine.name, state.ejection
        moving = [lease for lease in state.leases if lease.movable]
        log.error(
            "Engine %s hung: no activity for %.0f s, probe unanswered. %s; retrying %d requests elsewhere",
            name,
            silent,
            f"Ejected for {ejection.until - self._clock():.3g} s"
            if state.ejected
            else "Held until it responds",
            len(moving),
        )
        state.outages += 1
        if state.ejected:
            self._observer.engine_ejection(name)
        self.reports.died(
            name, [i.suspect(begun=lease.begun) for lease in state.leases if (i := lease.identity)]
        )
        for lease in moving:
            lease.abandon("hung")
        for call in list(state.control_calls):
            call.reschedule(asyncio.get_running_loop().time())

    def _still(self, state: EngineState) -> None:
        log.warning("Engine %s still hung; next probe in %.0f s", state.engine.name, self.next_probe(state))
        self.reports.died(state.engine.name, [])  # for workers that have started since

    def _give_up_lost(self, state: EngineState, now: float) -> None:
        """Abandon the requests that an engine which works will never answer."""
        for lease in list(state.leases):
            if lease.waits_from is None:
                continue
            wait = Wait(
                begun=lease.begun,
                silent=now - lease.waits_from,
                inactive=state.inactive,
                visible=state.counter_sum is not None,
                queued=state.waiting,
            )
            reason = judge(wait, self.patience)
            if reason == "first_byte" and not self._is_taken_elsewhere(lease):
                continue
            if reason:
                log.warning(
                    "Engine %s: request silent for %.0f s (%s); aborting the attempt",
                    state.engine.name, wait.silent, reason,
                )  # fmt: skip
                lease.abandon(reason)

    def _is_taken_elsewhere(self, lease: Lease) -> bool:
        """Whether another engine can take the request."""
        here = lease.state
        return any(
            state is not here
            and state.usable
            and state.engine.base_model == here.engine.base_model
            and state.view.meets(lease.requires)
            for state in self._pool.states()
        )

    # -- probes

    def _probe(self, state: EngineState) -> None:
        self._probes[state] = asyncio.create_task(self._ask(state), name=f"one token of {state.engine.name}")

    def _probe_of(self, state: EngineState) -> Probe:
        """The state of the probe. Its result is returned once."""
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
            state.counter_sum = None  # the probe itself changed the counters
        self._spent(state.engine, answer)
        return Probe.PASSED

    def on_report(self, engine: str) -> None:
        """Another worker reports that the engine hangs: probe it."""
        state = self._pool.state(engine)
        if state is not None and state not in self._probes and not state.ejection.hangs:
            log.warning("Engine %s reported as hung by another worker; probing it", engine)
            state.ejection = outlier_ejection.reported(state.ejection, self.rules)
            self._probe(state)

    @contextlib.asynccontextmanager
    async def guard(self, engine: Engine) -> AsyncIterator[None]:
        """Context for a call to an engine's core. Raises EngineUnreachableError as soon as the engine is
        found to hang."""
        state = self._pool.state(engine.name)
        if state is None:
            yield
            return
        if state.ejection.hangs:
            raise EngineUnreachableError(f"{engine.name} hangs")
        try:
            async with asyncio.timeout(None) as limit:
                state.control_calls.add(limit)
                try:
                    yield
                finally:
                    state.control_calls.discard(limit)
        except TimeoutError as error:
            raise EngineUnreachableError(f"{engine.name} hangs") from error
        state.last_activity = self._clock()

    # -- reporting

    def conditions(self) -> list[Condition]:
        return [
            Condition("engine_hung", state.engine.name, f"It {words}.")
            for state in self._pool.states()
            if (words := self.describe(state))
        ]

    def describe(self, state: EngineState) -> str:
        """A description of the hang; empty: the engine does not hang, or fails health checks anyway."""
        if not state.ejection.hangs or state.healthy is False:
            return ""
        return outlier_ejection.describe(state.ejection, self.rules, self._clock(), ejected=state.ejected)

    def hanging(self, base_model: str) -> list[EngineState]:
        """The hung engines of a fleet, whether or not they pass health checks."""
        states = self._pool.states()
        return [s for s in states if s.engine.base_model == base_model and s.ejection.hangs]

    def lasted(self, state: EngineState) -> float:
        """Seconds since the engine was found to hang."""
        since = state.ejection.since
        return 0.0 if since is None else self._clock() - since

    def next_probe(self, state: EngineState) -> float:
        """Seconds until the next probe of an engine that hangs."""
        due = outlier_ejection.next_probe(state.ejection, self.rules, ejected=state.ejected)
        return max(0.0, due - self._clock())
