"""What a flood of one tenant does to the others, and how evenly tenants are served that all ask for too much.

The requests of the others are the same with the flood and without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from gateway.admission.fair_queue.vtc import service
from gateway.planning.simulator.contestant import Contestant
from gateway.planning.simulator.course_figures import jain
from gateway.planning.simulator.gateway_model import Simulation, Site
from gateway.planning.simulator.simulated_request import Outcome, Request
from gateway.planning.simulator.workloads import FLOOD_BEGINS, FLOOD_SECONDS, generate

FLOODER = "t0"
SECONDS = 120.0
ENDS = FLOOD_BEGINS + FLOOD_SECONDS
WARM, OVER = 20.0, 60.0
"""Seconds in which tenants that all ask for too much are compared."""


@dataclass(frozen=True, slots=True)
class Flooded:
    """The others' requests that arrive during the flood, with it and without it. Seconds."""

    calm_p50: float
    calm_p99: float
    p50: float
    p99: float
    """Quantiles of the times to the first token; infinite if more than 1 % have none."""
    done: float
    """Share of them that were answered."""
    jain: float
    """Jain's index of the shares of what the others asked for that they were served by the flood's end."""
    throughput: float
    """Weighted tokens a second, of all tenants during the flood."""

    @property
    def ratio(self) -> float:
        return self.p99 / self.calm_p99


@dataclass(frozen=True, slots=True)
class Backlogged:
    """Tenants that all ask for more than they get."""

    spread: float
    """The most by which the weighted tokens of two tenants, each divided by its weight and counted from WARM
    on, ever differ."""
    share: float
    """Weighted tokens a second of a tenant of weight 1, on average."""
    served: dict[str, float]
    """Tenant → weighted tokens a second."""
    longest: float
    """Weighted tokens of the longest request."""

    def of(self, tenants: Iterable[str]) -> float:
        """The mean of these."""
        return float(np.mean([self.served[tenant] for tenant in tenants]))


def flood(
    site: Site, contestant: Contestant, rate: float, seed: int, *, adapters: int | None = None
) -> Flooded:
    def run(workload: str) -> list[Request]:
        requests = generate(workload, rate, SECONDS, seed, adapters=adapters)
        return Simulation(site, contestant, requests).run().requests

    def others(requests: list[Request]) -> list[Request]:
        return [r for r in requests if r.tenant != FLOODER and FLOOD_BEGINS <= r.arrival < ENDS]

    calm, all_ = others(run("shares")), run("flood")
    hit = others(all_)
    before, after = served(all_, FLOOD_BEGINS), served(all_, ENDS)
    requested: dict[str, float] = defaultdict(float)
    got: dict[str, float] = defaultdict(float)
    for request in hit:
        requested[request.tenant] += service(request.prompt, request.output)
        got[request.tenant] += served_of(request, ENDS)
    return Flooded(
        *_quantiles(calm),
        *_quantiles(hit),
        done=sum(r.outcome is Outcome.DONE for r in hit) / len(hit),
        jain=jain(got[tenant] / requested[tenant] for tenant in requested),
        throughput=(sum(after.values()) - sum(before.values())) / FLOOD_SECONDS,
    )


def backlog(
    site: Site, contestant: Contestant, rate: float, seed: int, *, adapters: int | None = None
) -> Backlogged:
    """`rate`: above what the fleet can serve."""
    workload = generate("shares", rate, OVER, seed, adapters=adapters)
    requests = Simulation(site, contestant, workload).run().requests
    weights = defaultdict(lambda: 1.0, site.weights)
    start = served(requests, WARM)
    tenants = sorted(start)
    spread = 0.0
    now = start
    for second in np.arange(WARM + 1, OVER):
        now = served(requests, float(second))
        got = [(now[t] - start[t]) / weights[t] for t in tenants]
        spread = max(spread, max(got) - min(got))
    seconds = OVER - 1 - WARM
    rates = {t: (now[t] - start[t]) / seconds for t in tenants}
    return Backlogged(
        spread=spread,
        share=sum(rates.values()) / sum(weights[t] for t in tenants),
        served=rates,
        longest=max(service(r.prompt, r.output) for r in requests),
    )


def served(requests: Iterable[Request], until: float) -> dict[str, float]:
    """Tenant → weighted tokens up to that time."""
    tokens: dict[str, float] = defaultdict(float)
    for request in requests:
        tokens[request.tenant] += served_of(request, until)
    return tokens


def served_of(request: Request, until: float) -> float:
    """Its prompt at the first token, and its answer evenly from there to the end."""
    if not 0 <= request.first <= until:
        return 0.0
    took = request.end - request.first
    part = min(1.0, (until - request.first) / took) if took > 0 else 1.0
    return service(request.prompt, request.output * part)


def both(site: Site) -> tuple[Site, Site]:
    """Without and with the fair queue."""
    return replace(site, fair_queue=False), replace(site, fair_queue=True)


def _quantiles(requests: list[Request]) -> tuple[float, float]:
    waited = [request.ttft if request.first >= 0 else np.inf for request in requests]
    p50, p99 = np.quantile(waited, (0.5, 0.99), method="higher")
    return float(p50), float(p99)
