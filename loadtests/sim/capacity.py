"""The highest rate at which enough requests meet their objectives, by bisection."""

from __future__ import annotations

import math

from loadtests.sim.contestants import Contestant
from loadtests.sim.gateway_model import Simulation, Site
from loadtests.sim.workloads import Workload

ENOUGH = 0.95
STEP = 1.5
PRECISION = 1.03
LEAST, MOST = 0.01, 100_000.0


def capacity(site: Site, contestant: Contestant, workload: Workload) -> float:
    """Requests per second. Every rate has the same requests in the same order, closer together or farther
    apart."""
    seconds = float(workload.arrival[-1]) or 1.0
    rate = len(workload) / seconds

    def enough(at: float) -> bool:
        count = len(workload) - len(workload) // 10
        misses = math.floor(count * (1 - ENOUGH))
        return not Simulation(site, contestant, workload.scaled(at / rate), misses=misses).run().stopped

    low, high = 0.0, math.inf
    at = rate
    while not low or high == math.inf:
        if enough(at):
            low, at = at, at * STEP
        else:
            high, at = at, at / STEP
        if not LEAST <= at <= MOST:
            return low
    while high / low > PRECISION:
        at = math.sqrt(low * high)
        low, high = (at, high) if enough(at) else (low, at)
    return low
