"""Each version has one engine, by rendezvous hashing; optionally with bounded loads.

With bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018), an engine over its capacity of
⌈c · (requests + 1) / engines⌉ passes the request on to the next in the version's order.
"""

from __future__ import annotations

import math

from adapters.placement.scheduling.scheduler import Option
from adapters.placement.scheduling.view import Ask, Fleet, Score

BOUND = 1.25
"""c: by how much an engine's load may exceed the mean."""


def consistent_hash(ask: Ask, options: list[Option], fleet: Fleet, _now: float) -> list[Score]:
    order = fleet.homes.order(ask.version)
    return [_ranked(o, order[o.view.name]) for o in options]


def bounded_hash(ask: Ask, options: list[Option], fleet: Fleet, _now: float) -> list[Score]:
    order = fleet.homes.order(ask.version)
    total = sum(o.view.load for o in options)
    capacity = math.ceil(BOUND * (total + 1) / max(1, len(options)))
    return [_ranked(o, order[o.view.name] + (len(order) if o.view.load >= capacity else 0)) for o in options]


def _ranked(option: Option, rank: int) -> Score:
    return Score(option.view.name, float(rank), option.action, f"place {rank + 1} in the version's order")
