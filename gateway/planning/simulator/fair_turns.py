"""The fair queue before one worker's scheduler, as in the gateway: its own code decides, this acts on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from adapters.placement.scheduling.patience import worth_waiting
from adapters.placement.scheduling.scheduler import OPENS
from adapters.placement.scheduling.view import EngineView, Pick
from gateway.admission.fair_queue.credits import EngineCredit
from gateway.admission.fair_queue.fleet_queue import PICKS, Charge, FleetQueue, Report
from gateway.admission.fair_queue.waiting import Fit, Waiter
from gateway.planning.simulator.engine_model import EngineModel
from gateway.planning.simulator.event_queue import Events
from gateway.planning.simulator.simulated_request import Request

SCRAPE = 1.0
"""Seconds between scrapes of an engine's metrics while its credit is not used up."""
ALL = 10**6


class Turns:
    """Tells the other workers what `board` holds, which they read at their own exchanges."""

    def __init__(
        self,
        name: str,
        board: dict[str, Report],
        *,
        views: Mapping[str, EngineView],
        engines: Mapping[str, EngineModel],
        holders: Callable[[str], list[str]],
        pick: Callable[[Request], Pick | None],
        place: Callable[[Request], None],
        events: Events,
    ) -> None:
        self.queue = FleetQueue()
        self._name, self._board = name, board
        self._views, self._engines = views, engines
        self._holders, self._pick, self._place, self._events = holders, pick, place, events
        self._credits = {name: EngineCredit(engine.seats) for name, engine in engines.items()}
        self._scraped = 0.0
        # Mutable: requests that wait for their turn, and those that have had it.
        self._waiting: dict[Request, Waiter] = {}
        self._requests: dict[Waiter, Request] = {}
        self._charges: dict[Request, Charge] = {}
        self._divide()

    def __repr__(self) -> str:
        return f"<Turns of {self._name}: {self.queue}>"

    def arrive(self, request: Request) -> None:
        if self.queue.passes(request.level) and self._fits(request):
            self._begin(request)
            return
        self._push(request)
        self.dispatch()

    def yields(self, request: Request) -> bool:
        had_turn = request in self._charges
        return not had_turn and self.queue.yields(request.tenant, request.level)

    def give_back(self, request: Request) -> None:
        """No engine has room for it after all."""
        self.queue.end(self._charges.pop(request), 0, 0, self._events.now, answered=False)
        self._push(request, returns=True)

    def _push(self, request: Request, *, returns: bool = False) -> None:
        waiter = Waiter(
            request.tenant, request.weight, request.level, request.adapter, self._events.now, returns
        )
        self._waiting[request], self._requests[waiter] = waiter, request
        self.queue.push(waiter)

    def dispatch(self, picks: int = PICKS) -> None:
        while waiter := self.queue.next(lambda waiter: self._fits(self._requests[waiter]), picks=picks):
            self.queue.waiting.remove(waiter, served=True)
            request = self._requests.pop(waiter)
            del self._waiting[request]
            self._begin(request)

    def end(self, request: Request, *, answered: bool) -> None:
        """The request has left its engine, or gives up."""
        if (waiter := self._waiting.pop(request, None)) is not None:
            del self._requests[waiter]
            self.queue.waiting.remove(waiter)
            return
        charge = self._charges.pop(request)
        prompt, output = request.prompt - request.left, request.output if answered else 0
        self.queue.end(charge, prompt, output, self._events.now, answered=answered)
        self.dispatch()

    def exchange(self) -> None:
        """After the views have heard of the other workers' requests."""
        now = self._events.now
        for request, charge in self._charges.items():
            charge.engine = request.engine
            if request.first >= 0:
                generated = self._engines[request.engine].generated(request)
                self.queue.progress(charge, request.prompt, generated, now)
        self._board[self._name] = self.queue.report()
        self.queue.hear({name: report for name, report in self._board.items() if name != self._name}, now)
        self._scrape()
        self._divide()
        self.dispatch(ALL)

    def _begin(self, request: Request) -> None:
        now = self._events.now
        charge = self.queue.begin(request.tenant, request.weight, request.level, request.prompt, now)
        self._charges[request] = charge
        self._place(request)

    def _fits(self, request: Request) -> Fit:
        pick = self._pick(request)
        if pick is None or not self.queue.has_room(self._views[pick.engine]):
            return Fit.NO
        if pick.action not in OPENS:
            return Fit.READY
        return Fit.NO if self._should_wait(request, pick) else Fit.OPENS

    def _should_wait(self, request: Request, pick: Pick) -> bool:
        return worth_waiting(
            pick,
            self._views[pick.engine],
            [self._views[name] for name in self._holders(request.adapter)],
            rank=request.rank,
            yields=self.yields(request),
            waited=self._events.now - request.arrival,
        )

    def _scrape(self) -> None:
        now = self._events.now
        due = now - self._scraped >= SCRAPE
        self._scraped = now if due else self._scraped
        for name, credit in self._credits.items():
            engine, view = self._engines[name], self._views[name]
            in_flight = view.in_flight + view.others_in_flight
            if due or (in_flight >= credit.value and credit.wants_scrape(now)):
                credit.scraped(engine.running, engine.in_flight - engine.running, in_flight)

    def _divide(self) -> None:
        engines = ((view, self._credits[name].value) for name, view in self._views.items())
        self.queue.divide(engines, self._events.now)
