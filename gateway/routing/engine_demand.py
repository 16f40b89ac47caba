"""Samples the load of each fleet, and computes how many engines an autoscaler should run."""

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
    while no engine of the fleet answers."""

    def __init__(
        self,
        pool: Pool,
        unplaced: Unplaced,
        *,
        slo_ttft: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`slo_ttft`: seconds."""
        self._pool = pool
        self._unplaced = unplaced
        self.slo_ttft = slo_ttft
        self._clock = clock
        # Mutable:
        self._demand = Demand(half_life=HALF_LIFE, window=WINDOW)
        self.loads: dict[str, FleetLoad] = {}
        """Base model → its fleet at the last sample."""

    def __repr__(self) -> str:
        return f"<EngineDemand {self.loads}>"

    async def run(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    def sample(self) -> None:
        self.loads = {base: self._load(base, fleet) for base, fleet in self._fleets().items()}
        demand = {base: load.demand(self.slo_ttft) for base, load in self.loads.items()}
        self._demand.sample(demand, self._clock())

    def wanted(self) -> dict[tuple[str, str], int]:
        """(base model, GPU type) → engines."""
        required = {}
        for base, fleet in self._fleets().items():
            there = Counter(state.engine.gpu_type for state in fleet)
            load = self.loads.get(base)
            known = self._demand.knows_the_past and load is not None and load.engines > 0
            peak = self._demand.peak(base) if known else math.inf
            for gpu_type, count in engines_wanted(there, self._demand.mean(base), peak).items():
                required[base, gpu_type] = count
        return required

    def _fleets(self) -> dict[str, list[EngineState]]:
        """The engines that take requests, or would if they answered, since they come back. Without those
        that serve one version only: how many of these to run, their operators decide."""
        fleets: dict[str, list[EngineState]] = {}
        for state in self._pool.states():
            if state.engine.takes_requests and not state.engine.moving and not state.engine.serves:
                fleets.setdefault(state.engine.base_model, []).append(state)
        return fleets

    def _load(self, base: str, fleet: Iterable[EngineState]) -> FleetLoad:
        serving = [state for state in fleet if state.usable]
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


def _delay(state: EngineState, more: float) -> float:
    """Expected seconds until the first token of a request that comes after `more` others."""
    view = state.view
    requests = view.in_flight + view.others_in_flight + more
    tokens = view.pending + view.others_pending
    return (view.costs.per_request * requests + view.costs.per_prompt_token * tokens) / 1000
