"""Replicas by smoothed load, as Dynamo's LoRA placement does: a version's share of the fleet's load decides
how many engines of its rendezvous order serve it, and the least loaded of these gets the request."""

from __future__ import annotations

import math
from collections import OrderedDict

from adapters.placement.scheduling.scheduler import Option
from adapters.placement.scheduling.view import Ask, Fleet, Score

HALF_LIFE = 10.0
"""Seconds after which a request counts half."""
KEPT = 10_000
"""Versions whose load is remembered."""


class DynamoLike:
    """Mutable: the smoothed request rate of each version."""

    def __init__(self) -> None:
        self._load: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._total = (0.0, 0.0)

    def __call__(self, ask: Ask, options: list[Option], fleet: Fleet, now: float) -> list[Score]:
        mine = _decayed(self._load.pop(ask.version, (0.0, now)), now) + 1
        self._load[ask.version] = (mine, now)
        if len(self._load) > KEPT:
            self._load.popitem(last=False)
        self._total = (_decayed(self._total, now) + 1, now)
        replicas = max(1, math.ceil(len(fleet.engines) * mine / self._total[0]))
        order = fleet.homes.order(ask.version)
        scores: list[Score] = []
        for o in options:
            rank = order[o.view.name]
            beyond = max(0, rank - replicas + 1) * 1e6  # only if no replica can serve it
            scores.append(
                Score(
                    o.view.name,
                    o.view.load + beyond,
                    o.action,
                    f"one of {replicas} replicas" if not beyond else "not a replica",
                )
            )
        return scores


def _decayed(load: tuple[float, float], now: float) -> float:
    value, then = load
    return value * float(0.5 ** (max(0.0, now - then) / HALF_LIFE))
