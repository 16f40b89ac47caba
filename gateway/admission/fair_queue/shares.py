"""How the workers divide a fleet's credit. Pure.

Each worker tells the others, several times a second, how many requests of which tenants wait and are in
flight there. From the same reports all compute the same division: a share of the fleet for each tenant, which
depends on what it asks for and on how far it is behind, split over the workers that it calls. So calling one
worker only is no disadvantage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

HORIZON: Final = 1.0
"""Seconds in which the division makes up for differences between counters."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One tenant's requests of one class at one worker."""

    waiting: int
    in_flight: int
    weight: float = 1.0
    given: float = 0.0
    """See `vtc.Account`, like `counter`."""
    counter: float = 0.0

    @property
    def requests(self) -> int:
        return self.waiting + self.in_flight


Demands = Mapping[tuple[int, str], Demand]
"""(Class, tenant) → its demand at one worker for one fleet."""


def divide(
    workers: Mapping[str, Demands],
    seats: float,
    seat_service: float,
    counters: Mapping[tuple[int, str], float],
) -> dict[str, float]:
    """Worker → how many requests it may have in flight.

    `seats`: the credit of the whole fleet. `seat_service`: weighted tokens that a seat serves within HORIZON;
    0: unknown. `counters`: as this worker knows them."""
    seats_of = dict.fromkeys(workers, 0.0)
    left = seats
    for level in sorted({level for demands in workers.values() for level, _ in demands}):
        by_tenant: dict[str, dict[str, Demand]] = {}
        for worker, demands in workers.items():
            for (demand_level, tenant), demand in demands.items():
                if demand_level == level and demand.requests:
                    by_tenant.setdefault(tenant, {})[worker] = demand
        names = list(by_tenant)
        asks = []
        for name in names:
            demands_of = by_tenant[name].values()
            counter = counters.get((level, name))
            if counter is None:
                counter = max(d.counter for d in demands_of)
            weight = next(iter(demands_of)).weight
            asks.append((float(sum(d.requests for d in demands_of)), weight, counter))
        lowest = min((counter for _, _, counter in asks), default=0.0)
        scaled = [(d, w, (c - lowest) / seat_service if seat_service > 0 else 0.0) for d, w, c in asks]
        shares = fill(scaled, left)
        for name, (requests, _, _), share in zip(names, asks, shares, strict=True):
            for worker, demand in by_tenant[name].items():
                seats_of[worker] += share * demand.requests / requests
        left -= sum(shares)
    return seats_of


def fill(asks: Iterable[tuple[float, float, float]], total: float) -> list[float]:
    """Water-filling: give each of (ask, weight, start) `weight * (level - start)`, at least 0 and at most
    what it asks, so that all get `total` together, or each what it asks."""
    asks = list(asks)
    if sum(ask for ask, _, _ in asks) <= total:
        return [ask for ask, _, _ in asks]
    bends = sorted(
        [(start, weight) for _, weight, start in asks]
        + [(start + ask / weight, -weight) for ask, weight, start in asks]
    )
    filled, slope, level = 0.0, 0.0, bends[0][0]
    for bend, change in bends:
        more = slope * (bend - level)
        if filled + more >= total:
            break
        filled, level, slope = filled + more, bend, slope + change
    if slope > 0:
        level += (total - filled) / slope
    return [min(ask, max(0.0, weight * (level - start))) for ask, weight, start in asks]


def part(free: int, mine: float, others: float) -> int:
    """How many of an engine's free places a worker may take until it hears the others again, if it wants so
    many more, and the others together so many. At least one: the parts of W workers exceed what is free by at
    most W - 1."""
    if free <= 0 or mine <= 0:
        return 0
    return min(free, math.ceil(free * mine / (mine + others)))
