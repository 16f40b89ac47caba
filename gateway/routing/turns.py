"""Turns: which request goes to an engine next. Acts on `gateway.admission.fair_queue`, which decides.

A request goes on at once if nobody waits before it and an engine has room. Any other waits here until it is
granted a turn: a place on the engine that the scheduler has picked for it just then. The place is
kept while the adapter is loaded, and becomes the request's lease.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from adapters.placement.scheduling.view import EngineView
from gateway.admission.fair_queue.fleet_queue import BATCH, FleetQueue
from gateway.admission.fair_queue.waiting import Fit, Waiter
from gateway.errors import FlorinError
from gateway.routing.engine_state import EngineState, Lease
from gateway.routing.pool import Pool
from gateway.routing.queue_refusals import (
    DEFAULT_LIMITS,
    QueueLimits,
    Refusal,
    no_room,
    not_started,
    timed_out,
    too_long,
)
from gateway.routing.queue_ticket import NAMES, QueueTicket

SWEEP_SECONDS: Final = 0.05
"""Time between checks of everyone who waits."""
CHECK_SECONDS: Final = 1.0
"""Time between two checks whether waiting still makes sense."""


class Lack(Enum):
    """What a request lacks, and waits for."""

    ROOM = "room"
    """On an engine that could serve it."""
    ENGINE = "engine"
    """None of its base model is up: one must start."""
    OTHER = "other"
    """A slot, or the return of an engine that is down."""


class TurnObserver(Protocol):
    """Notified for the metrics."""

    def queue_wait(self, priority: str, seconds: float) -> None: ...

    def queue_refused(self, reason: str) -> None: ...


class QueueMetrics(Protocol):
    """Written once a second."""

    def served(self, tenant: str, tokens: float) -> None: ...

    def queue_waiting(self, base_model: str, priority: str, count: int) -> None: ...

    def engine_credit(self, engine: str, credit: int) -> None: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    ticket: QueueTicket
    fit: Callable[[], Fit]
    picked: Callable[[], EngineView]
    """Where it fits, after `fit` has found that it does."""
    turn: asyncio.Future[None]


class Turns:
    """One worker's queues, one for each base model. On the worker's event loop only.

    The router calls `goes` and `wait` before each attempt, `take` when it has an engine, and `release` on
    every path. Leases report their ends to `ended`, and exchange `report` and `hear` with the other workers.
    """

    def __init__(
        self,
        pool: Pool,
        observer: TurnObserver | None = None,
        *,
        limits: QueueLimits = DEFAULT_LIMITS,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._observer = observer
        self.limits = limits
        self.enabled = enabled
        self._clock = clock
        pool.limited = enabled
        # Mutable:
        self.queues: dict[str, FleetQueue] = {}
        self._waiting: dict[Waiter, _Waiting] = {}
        self._due: set[FleetQueue] = set()
        """The queues to check in the loop's next iteration."""
        self._served: dict[str, float] = {}
        """Tenant → weighted tokens of its requests that have ended since the metrics were last written."""
        self.alone = True
        """No other worker is known."""
        self.hurry: Callable[[], None] = lambda: None
        """Asks for an exchange with the other workers. Set by `Leases`."""
        self.pressed: Callable[[str, int], object] = lambda _base_model, _requests: None
        """Called when so many requests, other than batches' lines, wait for a base model. Set by who runs
        batches."""

    def __repr__(self) -> str:
        return f"<Turns {self.queues}>"

    def queue(self, base_model: str) -> FleetQueue:
        queue = self.queues.get(base_model)
        if queue is None:
            queue = self.queues[base_model] = FleetQueue(base_model)
            self._divide(queue)
        return queue

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # -- one request's turn

    def goes(self, queue: FleetQueue, ticket: QueueTicket) -> bool:
        """Whether the request need not wait for others, so that it goes if an engine has room."""
        return ticket.had_turn or not self.enabled or queue.passes(ticket.level)

    async def wait(
        self,
        queue: FleetQueue,
        ticket: QueueTicket,
        lane: Hashable,
        fit: Callable[[], Fit],
        picked: Callable[[], EngineView],
        check: Callable[[], Lack],
    ) -> None:
        """Wait for a turn; then `ticket.place` is where `picked` said. `check` says what the request lacks
        now, and raises if waiting is pointless. Raises FlorinError if the queue is full, or the wait is or
        would be too long."""
        now, lack = self._clock(), check()
        starting = lack is Lack.ENGINE
        self._check(no_room(queue, self.limits, ticket, len(self._waiting), starting=starting))
        waiter = Waiter(ticket.tenant, ticket.weight, ticket.level, lane, now, returns=ticket.had_turn)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.push(waiter)
        self._waiting[waiter] = _Waiting(ticket, fit, picked, turn)
        try:
            self._dispatch(queue)
            if not turn.done():
                if not starting and not ticket.fills:
                    patience = min(self.limits.timeout, ticket.answer_by - now)
                    self._check(too_long(queue.expected_wait(waiter, self._clock()), patience))
                if not self.alone and queue.waiting.waiting(ticket.tenant, BATCH) == 1:
                    self.hurry()
                if not ticket.fills:
                    self.pressed(queue.base_model, queue.pressing)
                await self._granted(queue, waiter, lack, check)
        finally:
            if waiter in self._waiting:
                del self._waiting[waiter]
                queue.waiting.remove(waiter)
            waited = self._clock() - now
            ticket.waited += waited
            if self._observer is not None:
                self._observer.queue_wait(NAMES[ticket.level], waited)

    async def _granted(
        self, queue: FleetQueue, waiter: Waiter, lack: Lack, check: Callable[[], Lack]
    ) -> None:
        """Wait until its turn is granted. The wait for room is bounded, and so is that for an engine to
        start, whose end leaves the whole time for room."""
        ticket, turn = self._waiting[waiter].ticket, self._waiting[waiter].turn
        waited = {True: 0.0, False: 0.0}
        while not turn.done():
            now, starting = self._clock(), lack is Lack.ENGINE
            most = self.limits.start_timeout if starting else self.limits.timeout
            left = math.inf if ticket.fills else min(most - waited[starting], ticket.answer_by - now)
            if left <= 0 and starting:
                raise self._refuse(not_started(queue.base_model, now - waiter.since))
            if left <= 0:
                expected = queue.expected_wait(waiter, now)
                raise self._refuse(timed_out(expected, now - waiter.since))
            await asyncio.wait([turn], timeout=min(left, CHECK_SECONDS))
            waited[starting] += self._clock() - now
            if not turn.done():
                lack = check()

    def keep(self, queue: FleetQueue, ticket: QueueTicket, view: EngineView) -> None:
        """Keep a place on the engine for the request, which has its turn."""
        self.give_up_place(ticket)
        if self.enabled:
            self._begin(queue, ticket)
            ticket.place = view
            view.wait()

    def give_up_place(self, ticket: QueueTicket) -> None:
        """Its turn may lead to another engine."""
        if ticket.place is not None:
            ticket.place.wait(-1)
            ticket.place = None

    def take(self, queue: FleetQueue, ticket: QueueTicket, view: EngineView) -> bool:
        """Whether the request may be sent to the engine. If so, give its place back, and acquire a lease with
        `ticket.charge` at once."""
        if not self.enabled:
            return True
        if ticket.place is not view and not queue.has_room(view):
            ticket.had_turn = ticket.had_turn or ticket.place is not None  # which led to another engine
            return False
        self._begin(queue, ticket)
        if ticket.place is not None:
            self.give_up_place(ticket)
        ticket.had_turn = True
        return True

    def yields(self, queue: FleetQueue, ticket: QueueTicket) -> bool:
        """Whether the request leaves the engines' last places to other tenants'."""
        if not self.enabled or ticket.charge is not None or ticket.had_turn:
            return False
        return queue.yields(ticket.tenant, ticket.level)

    def release(self, queue: FleetQueue, ticket: QueueTicket) -> None:
        """Give back whatever the ticket holds. Idempotent."""
        self.give_up_place(ticket)
        charge, ticket.charge = ticket.charge, None
        if charge is not None:
            queue.end(charge, 0, 0, self._clock(), answered=False)
            self.freed(queue)

    def ended(self, lease: Lease) -> None:
        """A lease has ended: settle what its request has been charged."""
        charge, record = lease.charge, lease.record
        if charge is None:
            return
        prompt, _, output = record.tokens if record is not None else (0, None, 0)
        answered = record is not None and record.outcome == "ok"
        queue = self.queue(lease.state.engine.base_model)
        queue.end(charge, prompt, output, self._clock(), answered=answered)
        if charge.charged > 0:
            self._served[charge.tenant] = self._served.get(charge.tenant, 0.0) + charge.charged
        if queue.waiting.size:
            self.freed(queue)

    def freed(self, queue: FleetQueue) -> None:
        """An engine may have room: look at the queue in the event loop's next iteration."""
        if queue.waiting.size and queue not in self._due:
            self._due.add(queue)
            asyncio.get_running_loop().call_soon(self._look, queue)

    # -- the other workers

    def report(self) -> dict[str, Any] | None:
        """For the other workers; None: turned off."""
        if not self.enabled:
            return None
        self._charge_running()
        return {base: report for base, queue in self.queues.items() if (report := queue.report())}

    def hear(self, notes: Mapping[str, Any]) -> None:
        """The reports of the other workers, by worker."""
        now = self._clock()
        self.alone = not notes
        if not self.enabled:
            return
        for base in {base for note in notes.values() for base in note}:
            self.queue(base)
        engines = self._usable()
        for base, queue in self.queues.items():
            queue.hear({worker: note.get(base, []) for worker, note in notes.items()}, now)
            self._divide(queue, engines.get(base, []))
            if queue.waiting.size:
                self._dispatch(queue)
            if queue.pressing:
                self.pressed(base, queue.pressing)

    async def run(self) -> None:
        """Until cancelled: look at everyone who waits, and have full engines scraped."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if not self._waiting:
                continue
            now, engines = self._clock(), self._usable()
            for base, queue in self.queues.items():
                if not queue.waiting.size:
                    continue
                for state in engines.get(base, ()):
                    if state.view.full and state.credit.wants_scrape(now):
                        state.scrape_wanted = True
                        state.probe_soon()
                if self.alone:
                    self._divide(queue, engines.get(base, []))
                if base in engines:
                    self._dispatch(queue, picks=1 << 30)

    def show(self, metrics: QueueMetrics) -> None:
        served, self._served = self._served, {}
        for tenant, tokens in served.items():
            metrics.served(tenant, tokens)
        for base, queue in self.queues.items():
            for priority, level in zip(NAMES, queue.waiting.levels, strict=True):
                metrics.queue_waiting(base, priority, level.size)
        if self.enabled:
            for state in self._pool.states():
                metrics.engine_credit(state.engine.name, state.credit.value)

    # -- steps

    def _begin(self, queue: FleetQueue, ticket: QueueTicket) -> None:
        if ticket.charge is None:
            ticket.charge = queue.begin(
                ticket.tenant, ticket.weight, ticket.level, ticket.prompt, self._clock()
            )

    def _look(self, queue: FleetQueue) -> None:
        self._due.discard(queue)
        self._dispatch(queue)

    def _dispatch(self, queue: FleetQueue, **picks: int) -> None:
        def fit(waiter: Waiter) -> Fit:
            waiting = self._waiting[waiter]
            verdict = waiting.fit()
            return verdict if verdict and queue.has_room(waiting.picked()) else Fit.NO

        while queue.waiting.size and (waiter := queue.next(fit, **picks)) is not None:
            queue.waiting.remove(waiter, served=True)
            waiting = self._waiting.pop(waiter)
            self.keep(queue, waiting.ticket, waiting.picked())
            if not waiting.turn.done():
                waiting.turn.set_result(None)

    def _usable(self) -> dict[str, list[EngineState]]:
        """Base model → its engines that take requests."""
        fleets: dict[str, list[EngineState]] = {}
        for state in self._pool.states():
            if state.usable:
                fleets.setdefault(state.engine.base_model, []).append(state)
        return fleets

    def _divide(self, queue: FleetQueue, states: list[EngineState] | None = None) -> None:
        if self.enabled:
            states = self._usable().get(queue.base_model, []) if states is None else states
            queue.divide([(state.view, state.credit.value) for state in states], self._clock())

    def _charge_running(self) -> None:
        """Charge what running answers have cost so far, where requests wait."""
        now = self._clock()
        contended = {base: queue for base, queue in self.queues.items() if queue.contended}
        for state in self._pool.known.values() if contended else ():
            queue = contended.get(state.engine.base_model)
            for lease in state.leases if queue is not None else ():
                if queue is not None and lease.charge is not None and lease.record is not None:
                    prompt, _, output = lease.record.tokens
                    queue.progress(lease.charge, prompt, output, now)

    def _check(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            raise self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> FlorinError:
        if self._observer is not None:
            self._observer.queue_refused(refusal.reason)
        return refusal.error
