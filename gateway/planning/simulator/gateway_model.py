"""A fleet under a workload: workers of a gateway, their exchange, deadlines, and the engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from adapters.model import SlotState
from adapters.placement.churn import Changes
from adapters.placement.requirements import NO_LABELS
from gateway.admission.fair_queue.fleet_queue import Report
from gateway.planning.simulator.claim_rules import PlacementRules
from gateway.planning.simulator.contestant import Contestant
from gateway.planning.simulator.engine_model import EngineModel
from gateway.planning.simulator.event_queue import Events
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.simulator.placement_news import Mirror
from gateway.planning.simulator.simulated_request import Outcome, Request
from gateway.planning.simulator.worker import Worker
from gateway.planning.simulator.workloads import Workload

EXCHANGE = 0.1
"""Seconds between a worker's reports to the others."""
PATIENCE = 60.0
"""Seconds after which a request that has not been sent is refused, if deadlines do not count."""
UNLIMITED = 10**9
SMALL_RANK = 32
REGION, ELSEWHERE = {"region": "eu"}, {"region": "us"}
BOUND = "t0"
"""A tenant, the noisy one of the workload `noisy`."""


@dataclass(frozen=True, slots=True)
class Site:
    """What serves, and what is promised."""

    engines: int = 8
    slots: int = 8
    cpu_slots: int = 64
    workers: int = 1
    slo_ttft: float = 2.0
    slo_itl: float = 0.1
    pool: int | None = None
    """Engines that take adapters of every rank; the others take SMALL_RANK at most. None: all take every
    rank."""
    labels: bool = False
    """Every other engine has REGION, which BOUND requires."""
    pins: frozenset[str] = frozenset()
    """Adapters that are pinned."""
    merged: tuple[str, ...] = ()
    """Adapters that are merged into the weights of the first engines, one into each."""
    fair_queue: bool = False
    weights: tuple[tuple[str, float], ...] = ()
    """Tenants' weights in the fair queue; 1 for all others."""
    levels: tuple[tuple[str, int], ...] = ()
    """Classes of tenants in the fair queue: 0 high, 2 low."""
    hardware: Hardware = field(default_factory=Hardware.of)

    def takes_all(self, engine: int) -> bool:
        return self.pool is None or engine < self.pool

    def merged_into(self, engine: int) -> str:
        return self.merged[engine] if engine < len(self.merged) else ""

    def labels_of(self, engine: int) -> Mapping[str, str]:
        if not self.labels:
            return NO_LABELS
        return ELSEWHERE if engine % 2 else REGION


@dataclass(slots=True)
class Course:
    """What happened."""

    requests: list[Request]
    engines: list[EngineModel]
    seconds: float
    """From the first arrival to the last."""
    stopped: bool
    """Too many requests missed their objectives, so the rest was not simulated."""
    churn: Changes


class Simulation:
    """One contestant under one workload. `run` once."""

    def __init__(
        self, site: Site, contestant: Contestant, workload: Workload, *, misses: int | None = None
    ) -> None:
        """`misses`: stop after more, not counting the first tenth of the requests."""
        self._site, self._contestant, self._misses_left = site, contestant, misses
        self._requests = workload.requests()
        weights, levels = dict(site.weights), dict(site.levels)
        for request in self._requests:
            request.requires = REGION if site.labels and request.tenant == BOUND else NO_LABELS
            request.weight, request.level = weights.get(request.tenant, 1.0), levels.get(request.tenant, 1)
        self._open = len(self._requests)
        first = len(self._requests) // 10
        self._measured_from = self._requests[first].arrival if self._requests else 0.0
        self.events = events = Events()
        slots, hardware = site.slots, site.hardware
        if contestant.unlimited:
            slots = UNLIMITED
            hardware = replace(
                hardware, activate=0, load=0, load_per_rank=0, slot_tokens=0, slot_tokens_per_rank=0
            )
        self.engines = {
            f"e{n}": EngineModel(
                f"e{n}",
                0 if site.merged_into(n) else slots,
                0 if site.merged_into(n) else site.cpu_slots,
                hardware,
                events,
                rank=workload.max_rank if site.takes_all(n) else min(SMALL_RANK, workload.max_rank),
                labels=site.labels_of(n),
                serves=site.merged_into(n),
            )
            for n in range(site.engines)
        }
        self._mirror = Mirror(events)
        self._rules = PlacementRules(
            lambda: int(events.now * 1000), pins=site.pins, changed=self._mirror.changed
        )
        board: dict[str, Report] | None = {} if site.fair_queue else None
        self.workers = [
            Worker(
                name=f"w{n}",
                contestant=contestant,
                engines=self.engines,
                residency=self._mirror.residency,
                rules=self._rules,
                events=events,
                board=board,
            )
            for n in range(site.workers)
        ]
        self._mirror.residency.on_change = self._placement_changed
        for name, adapter in zip(self.engines, site.merged, strict=False):
            self._rules.claim(adapter, name, slots=1, owner="", ttl_ms=1000, replica=True)
            self._rules.confirm(adapter, name, owner="", grace_ms=0)
        for engine in self.engines.values():
            engine.on_first, engine.on_end = self._first, self._end
            if not contestant.claims:
                engine.on_tier = self._mirror.seen
        if contestant.claims:
            self._mirror.on_change = self._heard

    @property
    def stopped(self) -> bool:
        return self._misses_left is not None and self._misses_left < 0

    def run(self) -> Course:
        for _ in self.steps():
            pass
        return self.course()

    def course(self) -> Course:
        seconds = self._requests[-1].arrival if self._requests else 0.0
        return Course(
            self._requests, list(self.engines.values()), seconds, self.stopped, self._mirror.residency.churn()
        )

    def steps(self) -> Iterator[float]:
        """Run, and yield the time of each arrival and every so often afterwards."""
        events, workers = self.events, self.workers
        for n in range(len(workers)):
            events.at(EXCHANGE * n / len(workers), self._exchange, n)
        patience = self._site.slo_ttft if self._contestant.cancel else PATIENCE
        for number, request in enumerate(self._requests):
            request.deadline = request.arrival + patience
            request.worker = number % len(workers)
            events.until(request.arrival)
            if self.stopped:
                return
            events.at(request.deadline, self._deadline, request)
            workers[request.worker].arrive(request)
            yield events.now
        while self._open and not self.stopped:
            events.until(events.now + 1)
            yield events.now

    # -- what becomes of requests

    def _first(self, request: Request) -> None:
        self.workers[request.worker].answering(request)

    def _end(self, request: Request) -> None:
        self.workers[request.worker].ended(request)
        self._finish(request, Outcome.DONE)

    def _deadline(self, request: Request) -> None:
        if request.outcome is not None or request.first >= 0:
            return
        worker = self.workers[request.worker]
        if not request.engine:
            worker.give_up(request)
            request.end = self.events.now
            self._finish(request, Outcome.REFUSED)
        elif self._contestant.cancel:
            self.engines[request.engine].cancel(request)
            worker.answering(request)
            worker.ended(request)
            request.end = self.events.now
            self._finish(request, Outcome.CANCELLED)

    def _finish(self, request: Request, outcome: Outcome) -> None:
        request.outcome = outcome
        self._open -= 1
        if self._misses_left is None or request.arrival < self._measured_from:
            return
        if not met(request, self._site):
            self._misses_left -= 1

    def _placement_changed(
        self, engine: str, version: str, before: SlotState | None, after: SlotState | None
    ) -> None:
        for worker in self.workers:
            worker.views[engine].changed(version, before, after)

    def _heard(self, version: str) -> None:
        for worker in self.workers:
            worker.heard(version)

    # -- what workers tell each other

    def _exchange(self, number: int) -> None:
        self.events.at(self.events.now + EXCHANGE, self._exchange, number)
        self.workers[number].flush(exchange=len(self.workers) > 1 or self._site.fair_queue)


def met(request: Request, site: Site) -> bool:
    """Whether the request was answered within both objectives."""
    return request.outcome is Outcome.DONE and request.ttft <= site.slo_ttft and request.itl <= site.slo_itl
