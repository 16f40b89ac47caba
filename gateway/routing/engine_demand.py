"""Samples the load of each fleet, and computes how many engines an autoscaler should run, and what waits for
them."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable

from adapters.placement.demand import Demand
from adapters.placement.scaling import FleetLoad, engines_wanted
from gateway.routing.engine_state import EngineState
from gateway.routing.pool import Pool
from gateway.routing.unplaced import Unplaced

SAMPLE_SECONDS = 1.0
HALF_LIFE = 10.0
"""Seconds after which a sample counts half."""
WINDOW = 300.0
"""Engines are kept for the peak of the last one to two windows (seconds)."""


class EngineDemand:
    """Every worker samples the same facts, the requests of all workers, so any of them can answer a scrape.
    One that has just started does not know the past, and wants no fewer engines than there are; nor does any
    while no engine of the fleet answers.

    Engines on trial are neither counted nor replaced: a trial's share decides their load, so they are wanted
    besides the others."""

    def __init__(
        self,
        pool: Pool,
        unplaced: Unplaced,
        *,
        slo_ttft: float,
        to_zero: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`slo_ttft`: seconds. `to_zero`: an idle fleet wants no engine, since requests wait for one to
        start."""
        self._pool = pool
        self._unplaced = unplaced
        self.slo_ttft = slo_ttft
        self.to_zero = to_zero
        self._clock = clock
        # Mutable:
        self._demand = Demand(half_life=HALF_LIFE, window=WINDOW)
        self.loads: dict[str, FleetLoad] = {}
        """Base model → its fleet at the last sample."""
        self._used: dict[str, float] = {}
        """Base model → when its engines were last in use, by whomever, or were first seen."""

    def __repr__(self) -> str:
        return f"<EngineDemand {self.loads}>"

    async def run(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    def sample(self) -> None:
        now, fleets = self._clock(), self._fleets()
        self.loads = {base: self._load(base, fleet) for base, fleet in fleets.items()}
        demand = {base: load.demand(self.slo_ttft) for base, load in self.loads.items()}
        self._demand.sample(demand, now)
        used = {
            base: now if self._unplaced.everywhere(base)[0] else now - min(s.quiet_for(now) for s in fleet)
            for base, fleet in fleets.items()
        }
        self._used = {base: max(seen, self._used.get(base, now)) for base, seen in used.items()}

    def wanted(self) -> dict[tuple[str, str], int]:
        """(base model, GPU type) → engines."""
        required: Counter[tuple[str, str]] = Counter()
        for base, fleet in self._fleets().items():
            tried, others = _apart(fleet)
            there = Counter(state.engine.gpu_type for state in others)
            load = self.loads.get(base)
            known = self._demand.knows_the_past and load is not None and load.engines > 0
            peak = self._demand.peak(base) if known else math.inf
            idle = known and self.to_zero and self._idle(base)
            by_type = engines_wanted(there, self._demand.mean(base), peak, at_least=int(not idle))
            required.update({(base, gpu_type): count for gpu_type, count in by_type.items()})
            if not idle:
                required.update((base, state.engine.gpu_type) for state in tried)
        return dict(required)

    def waiting(self) -> dict[str, int]:
        """Base model → requests that wait for an engine, also where it has none."""
        return {base: self._unplaced.everywhere(base)[0] for base in self._pool.catalog.bases}

    def _idle(self, base: str) -> bool:
        """Whether nobody has used its engines lately."""
        return self._clock() - self._used.get(base, math.inf) >= WINDOW

    def _fleets(self) -> dict[str, list[EngineState]]:
        """The engines that take requests, or would if they answered, since they come back. Without those
        that serve one version only: how many of these to run, their operators decide."""
        fleets: dict[str, list[EngineState]] = {}
        for state in self._pool.states():
            if state.engine.takes_requests and not state.engine.moving and not state.engine.serves:
                fleets.setdefault(state.engine.base_model, []).append(state)
        return fleets

    def _load(self, base: str, fleet: Iterable[EngineState]) -> FleetLoad:
        serving = [state for state in _apart(fleet)[1] if state.usable]
        unplaced, adapters = self._unplaced.everywhere(base)
        count, requests = len(serving), unplaced
        capacity = delay = 0.0
        slots = 0
        for state in serving:  # all engines, every second: in one pass
            view = state.view
            capacity += state.credit.runs
            slots += state.engine.slots
            requests += view.in_flight + view.others_in_flight
            adapters += view.active
            delay += _delay(state, unplaced / count)
        return FleetLoad(
            engines=count,
            capacity=capacity,
            slots=slots,
            requests=requests,
            adapters=adapters,
            delay=delay / count if count else 0.0,
        )


def _apart(fleet: Iterable[EngineState]) -> tuple[list[EngineState], list[EngineState]]:
    """The engines on trial, and the others; with no others, they are a fleet like any."""
    tried: list[EngineState] = []
    others: list[EngineState] = []
    for state in fleet:
        (tried if state.engine.on_trial else others).append(state)
    return (tried, others) if others else ([], tried)


def _delay(state: EngineState, more: float) -> float:
    """Expected seconds until the first token of a request that comes after `more` others."""
    view = state.view
    requests = view.in_flight + view.others_in_flight + more
    tokens = view.pending + view.others_pending
    return (view.costs.per_request * requests + view.costs.per_prompt_token * tokens) / 1000
