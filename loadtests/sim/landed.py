"""The policy before there were replicas: an engine that holds the version beats any load, and a load goes
where its cost in the old formula is lowest. A baseline to compare with."""

from __future__ import annotations

from adapters.placement.scheduling.scheduler import Option
from adapters.placement.scheduling.view import Action, Ask, EngineView, Fleet, Score

PER_REQUEST, NEW_ADAPTER, LOAD, LOAD_STALL, EVICTION, WAIT_FOR_SLOT = 18.0, 480.0, 70.0, 0.35, 60.0, 400.0
NEVER = 1e9
_ORDER = {Action.SERVE: 0, Action.JOIN: 1}


def landed(_ask: Ask, options: list[Option], _fleet: Fleet, _now: float) -> list[Score]:
    return [
        Score(o.view.name, NEVER * _ORDER.get(o.action, 2) + _cost(o.view, o.action), o.action, "")
        for o in options
    ]


def _cost(view: EngineView, action: Action) -> float:
    cost = PER_REQUEST * view.load
    if action is Action.SERVE:
        return cost
    cost += NEW_ADAPTER * (view.active + 1) / view.slots + LOAD * (1 + LOAD_STALL * view.load)
    if len(view.held) >= view.slots:
        cost += EVICTION
    return cost + WAIT_FOR_SLOT if view.active >= view.slots else cost
