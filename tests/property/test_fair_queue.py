"""The fair queue over several workers, with the exchange between them and its delays, in a small simulation:
engines that run so many requests at a time, tenants that ask at some workers, and requests that give up."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from adapters.placement.scheduling.view import EngineView
from gateway.admission.fair_queue.fleet_queue import Charge, FleetQueue
from gateway.admission.fair_queue.shares import HORIZON
from gateway.admission.fair_queue.vtc import service
from gateway.admission.fair_queue.waiting import LOAD_SLACK, Fit, Waiter
from tests.support.search import examples

EXCHANGE = 0.1


@dataclass(eq=False)
class Request:
    tenant: str
    prompt: int
    output: int
    seconds: float
    waiter: Waiter | None = None
    charge: Charge | None = None
    engine: str = ""


@dataclass
class Worker:
    name: str
    queue: FleetQueue
    views: dict[str, EngineView]
    requests: dict[Waiter, Request] = field(default_factory=dict)


class Site:
    """Each tenant keeps `callers` requests going at each of its workers."""

    def __init__(self, workers: int, engines: int, seats: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.seats = seats
        self.now = 0.0
        names = [f"e{n}" for n in range(engines)]
        self.workers = [
            Worker(f"w{n}", FleetQueue(), {e: EngineView(e, 8, 8, 8) for e in names}) for n in range(workers)
        ]
        self.on = Counter[str]()
        self.highest = 0
        """Requests on one engine at a time."""
        self.served: Counter[str] = Counter()
        self.idle = 0.0
        """Seat-seconds that were free while requests waited."""
        self.texts: dict[str, tuple[dict[str, tuple[int, int]], list]] = {}
        self._events: list[tuple[float, int, object]] = []
        self._numbers = count()
        self.weights: dict[str, float] = {}
        self.make: dict[str, tuple[int, int]] = {}
        for n, worker in enumerate(self.workers):
            self._exchange(worker, again=False)
            self.at(EXCHANGE * n / workers, lambda w=worker: self._exchange(w))

    def at(self, when: float, what: object) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            when, _, what = heapq.heappop(self._events)
            if any(len(w.queue.waiting) for w in self.workers):
                free = self.seats * len(self.workers[0].views) - sum(self.on.values())
                self.idle += max(0, free) * (when - self.now)
            self.now = when
            what()
        self.now = until

    def call(self, tenant: str, worker: Worker, *, level: int = 1) -> Request:
        prompt, output = self.make.get(tenant, (100, 50))
        seconds = output * 0.004 * self.random.uniform(0.8, 1.2)
        request = Request(tenant, prompt, self.random.randint(output // 2, output * 3 // 2), seconds)
        weight = self.weights.get(tenant, 1.0)
        request.waiter = waiter = Waiter(tenant, weight, level, tenant, self.now)
        worker.requests[waiter] = request
        worker.queue.push(waiter)
        self.dispatch(worker)
        return request

    def keep_calling(self, tenant: str, workers: list[int], callers: int, *, level: int = 1) -> None:
        def call(worker: Worker) -> None:
            request = self.call(tenant, worker, level=level)
            request.again = lambda: call(worker)  # type: ignore[attr-defined]

        for n in workers:
            for _ in range(callers):
                self.at(self.now, lambda w=self.workers[n]: call(w))

    def dispatch(self, worker: Worker) -> None:
        def room(_waiter: Waiter) -> Fit:
            return Fit.READY if any(worker.queue.has_room(v) for v in worker.views.values()) else Fit.NO

        while waiter := worker.queue.next(room):
            worker.queue.waiting.remove(waiter, served=True)
            request = worker.requests.pop(waiter)
            view = min((v for v in worker.views.values() if worker.queue.has_room(v)), key=lambda v: v.load)
            request.engine = view.name
            view.sent("", 0)
            request.charge = worker.queue.begin(
                request.tenant, waiter.weight, waiter.level, request.prompt, self.now
            )
            self.on[view.name] += 1
            self.highest = max(self.highest, self.on[view.name])
            delay = request.seconds * max(1.0, self.on[view.name] / self.seats)
            self.at(self.now + delay, lambda r=request: self._end(worker, r))

    def give_up(self, worker: Worker, request: Request) -> None:
        if request.waiter in worker.requests:
            del worker.requests[request.waiter]
            worker.queue.waiting.remove(request.waiter)

    def _end(self, worker: Worker, request: Request) -> None:
        worker.views[request.engine].ended("")
        self.on[request.engine] -= 1
        self.served[request.tenant] += int(service(request.prompt, request.output))
        assert request.charge
        worker.queue.end(request.charge, request.prompt, request.output, self.now, answered=True)
        self.dispatch(worker)
        if hasattr(request, "again"):
            request.again()

    def _exchange(self, worker: Worker, *, again: bool = True) -> None:
        own = {name: (view.in_flight, 0) for name, view in worker.views.items()}
        self.texts[worker.name] = own, worker.queue.report()
        others = {name: text for name, text in self.texts.items() if name != worker.name}
        for name, view in worker.views.items():
            view.heard(sum(loads[name][0] for loads, _ in others.values()), 0, 0)
        worker.queue.hear({name: report for name, (_, report) in others.items()}, self.now)
        worker.queue.divide([(view, self.seats) for view in worker.views.values()], self.now)
        self.dispatch(worker)
        if again:
            self.at(self.now + EXCHANGE, lambda: self._exchange(worker))


SHAPES = st.lists(
    st.tuples(st.integers(10, 400), st.integers(10, 100), st.sampled_from([0.5, 1.0, 3.0])),
    min_size=2,
    max_size=5,
)
"""Prompt tokens, mean output tokens and weight of each tenant."""


def backlogged(workers, engines, seats, shapes, data, seed) -> tuple[Site, Counter[str]]:
    """What each of several tenants that always have requests waiting is served in 20 seconds."""
    site = Site(workers, engines, seats, seed)
    for n, (prompt, output, weight) in enumerate(shapes):
        at = data.draw(st.lists(st.integers(0, workers - 1), min_size=1, unique=True))
        site.make[f"t{n}"], site.weights[f"t{n}"] = (prompt, output), weight
        site.keep_calling(f"t{n}", at, callers=engines * seats)
    site.run(5)
    before = Counter(site.served)
    site.run(25)
    return site, Counter({tenant: site.served[tenant] - before[tenant] for tenant in site.weights})


@examples(8)
@given(
    seed=st.integers(0, 10**6), workers=st.integers(1, 4), engines=st.integers(1, 3),
    seats=st.integers(4, 12), shapes=SHAPES, data=st.data(),
)  # fmt: skip
def test_the_bound(seed, workers, engines, seats, shapes, data):
    """docs/fairness.md derives it."""
    site, served = backlogged(workers, engines, seats, shapes, data, seed)
    rate = sum(served.values()) / 20
    charge = max(service(prompt, output * 3 // 2) for prompt, output, _ in shapes)
    unknown = engines * seats * max(service(0, output * 3 // 2) for _, output, _ in shapes)
    bound = 2 * (charge + unknown + LOAD_SLACK)
    if workers > 1:
        longest = max(output * 3 // 2 * 0.004 * 1.2 for _, output, _ in shapes) * 2
        bound += rate * (4 * EXCHANGE + HORIZON + longest)
    bound /= min(site.weights.values())
    shares = [served[tenant] / weight for tenant, weight in site.weights.items()]
    assert max(shares) - min(shares) <= bound
    assert site.highest <= (seats if workers == 1 else 2 * seats + workers)
    total = 25 * engines * seats
    assert site.idle <= (1e-9 if workers == 1 else 0.03 * total), "places were free while requests waited"


@examples(4)
@given(seed=st.integers(0, 10**6), workers=st.integers(2, 4))
def test_calling_one_worker_only_is_no_disadvantage(seed, workers):
    """Against a tenant that floods another worker, and one that floods all."""
    site = Site(workers, engines=2, seats=8, seed=seed)
    site.keep_calling("one", [0], callers=16)
    site.keep_calling("other", [1], callers=100)
    site.keep_calling("all", list(range(workers)), callers=50)
    site.run(25)
    fair = sum(site.served.values()) / 3
    assert min(site.served.values()) > 0.85 * fair


@examples(4)
@given(seed=st.integers(0, 10**6), workers=st.integers(1, 3))
def test_a_higher_class_goes_first_and_the_rest_is_not_wasted(seed, workers):
    site = Site(workers, engines=1, seats=8, seed=seed)
    site.keep_calling("low", list(range(workers)), callers=20, level=2)
    site.keep_calling("high", [0], callers=3, level=0)
    site.run(20)
    alone = Site(workers, engines=1, seats=8, seed=seed)
    alone.keep_calling("high", [0], callers=3, level=0)
    alone.run(20)
    assert site.served["high"] > 0.55 * alone.served["high"]
    assert site.served["low"] > 0


@examples(8)
@given(seed=st.integers(0, 10**6), workers=st.integers(1, 3))
def test_whoever_does_not_give_up_is_served_and_nothing_is_left(seed, workers):
    site = Site(workers, engines=1, seats=4, seed=seed)
    choose = random.Random(seed)
    for _ in range(150):
        worker = choose.choice(site.workers)
        request = site.call(choose.choice("abcdef"), worker, level=choose.choice((0, 1, 1, 2)))
        if request.waiter in worker.requests and choose.random() < 0.3:
            site.at(site.now + choose.random(), lambda w=worker, r=request: site.give_up(w, r))
        site.run(site.now + choose.random() * 0.05)
    site.run(site.now + 60)
    for worker in site.workers:
        assert not worker.requests
        queue = worker.queue
        assert (len(queue.waiting), queue.started, queue.in_flight) == (0, 0, {})
        assert not any(level.tenants or level.returning for level in queue.waiting.levels)
    assert not +site.on
