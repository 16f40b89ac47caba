"""The highest rate at which enough requests meet their objectives, by bisection."""

from __future__ import annotations

import math

from gateway.planning.simulator.contestant import Contestant
from gateway.planning.simulator.gateway_model import Simulation, Site
from gateway.planning.simulator.workloads import Workload

ENOUGH = 0.95
STEP = 1.5
PRECISION = 1.03
LEAST, MOST = 0.01, 100_000.0


def capacity(site: Site, contestant: Contestant, workload: Workload) -> float:
    """Requests per second. Every rate has the same requests in the same order, closer together or farther
    apart."""
    seconds = float(workload.arrival[-1]) or 1.0
    rate = len(workload) / seconds

    def enough(rate_now: float) -> bool:
        count = len(workload) - len(workload) // 10
        misses = math.floor(count * (1 - ENOUGH))
        return not Simulation(site, contestant, workload.scaled(rate_now / rate), misses=misses).run().stopped

    low, high = 0.0, math.inf
    rate_now = rate
    while not low or high == math.inf:
        if enough(rate_now):
            low, rate_now = rate_now, rate_now * STEP
        else:
            high, rate_now = rate_now, rate_now / STEP
        if not LEAST <= rate_now <= MOST:
            return low
    while high / low > PRECISION:
        rate_now = math.sqrt(low * high)
        low, high = (rate_now, high) if enough(rate_now) else (low, rate_now)
    return low
