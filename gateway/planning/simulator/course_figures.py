"""What a simulated course amounts to. The first requests fill empty caches and do not count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from gateway.planning.simulator.gateway_model import Course, Site, met
from gateway.planning.simulator.simulated_request import Outcome, Request, Tier

FEW = 5
"""Adapters with fewer requests say nothing about the worst ones."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one course comes to. Times in seconds."""

    requests: int
    attainment: float
    """Share of the requests that were answered within both objectives."""
    goodput: float
    """Such requests a second."""
    ttft_p50: float
    ttft_p99: float
    """Only requests with a first token count."""
    worst_decile_ttft: float
    """The 90th percentile of the adapters' mean times to the first token. A request that was refused or
    cancelled counts as twice the objective."""
    worst_decile_attainment: float
    """The 10th percentile of the adapters' attainments."""
    hit_ratio: float
    """Share of requests whose adapter had a GPU slot on the chosen engine."""
    disk_ratio: float
    """Share of requests whose adapter was read from disk."""
    loads: int
    activations: int
    loads_per_thousand: float
    evictions_per_thousand: float
    """For a thousand requests, of all engines."""
    undone: float
    """Share of these loads and evictions that were undone within a minute."""
    prefix_ratio: float
    """Share of prompt tokens that came from prefix caches."""
    max_mean_load: float
    """Request seconds on the busiest engine over the mean."""
    jain: float
    """Jain's index of the tenants' attainments: 1 is equal."""
    refused: int
    cancelled: int


def warm(requests: list[Request]) -> list[Request]:
    """The requests that count."""
    return requests[len(requests) // 10 :]


def figures(course: Course, site: Site) -> Figures:
    requests = warm(course.requests)
    if not requests:
        raise ValueError("no requests to measure")
    answered = [request.ttft for request in requests if request.first >= 0] or [float("nan")]
    met_by = {id(request): float(met(request, site)) for request in requests}
    seconds = requests[-1].arrival - requests[0].arrival

    def attainment(each: Request) -> float:
        return met_by[id(each)]

    def waited(each: Request) -> float:
        return each.ttft if each.outcome is Outcome.DONE else 2 * site.slo_ttft

    by_adapter = _means(requests, lambda r: r.adapter, waited, FEW)
    met_by_adapter = _means(requests, lambda r: r.adapter, attainment, FEW)
    tenants = _means(requests, lambda r: r.tenant, attainment, 1)
    ratio = {tier: sum(r.tier is tier for r in requests) / len(requests) for tier in Tier}
    load: dict[str, float] = {engine.name: 0.0 for engine in course.engines}
    for request in requests:
        if request.engine:
            load[request.engine] += request.end - request.arrival
    good, churn = sum(met_by.values()), course.churn
    return Figures(
        requests=len(requests),
        attainment=good / len(requests),
        goodput=good / seconds if seconds else 0.0,
        ttft_p50=float(np.quantile(answered, 0.5)),
        ttft_p99=float(np.quantile(answered, 0.99)),
        worst_decile_ttft=float(np.quantile(by_adapter or answered, 0.9)),
        worst_decile_attainment=float(np.quantile(met_by_adapter or [good / len(requests)], 0.1)),
        hit_ratio=ratio[Tier.GPU],
        disk_ratio=ratio[Tier.DISK],
        loads=sum(engine.loads for engine in course.engines),
        activations=sum(engine.activations for engine in course.engines),
        loads_per_thousand=1000 * churn.loads / len(course.requests),
        evictions_per_thousand=1000 * churn.evictions / len(course.requests),
        undone=churn.share_undone,
        prefix_ratio=sum(r.saved for r in requests) / sum(r.prompt for r in requests),
        max_mean_load=max(load.values()) * len(load) / (sum(load.values()) or 1.0),
        jain=jain(tenants),
        refused=sum(r.outcome is Outcome.REFUSED for r in requests),
        cancelled=sum(r.outcome is Outcome.CANCELLED for r in requests),
    )


def jain(shares: Iterable[float]) -> float:
    """1 if all are equal, 1/n if one has everything."""
    values = np.array(list(shares))
    return float(values.sum() ** 2 / (len(values) * (values**2).sum())) if values.any() else 1.0


def _means(
    requests: list[Request], key: Callable[[Request], str], value: Callable[[Request], float], least: int
) -> list[float]:
    groups: dict[str, list[float]] = defaultdict(list)
    for request in requests:
        groups[key(request)].append(value(request))
    return [sum(values) / len(values) for values in groups.values() if len(values) >= least]
