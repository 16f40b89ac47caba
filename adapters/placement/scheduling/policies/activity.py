"""Activity of the adapter minus queue, as in the inference gateway of llm-d: full marks to an engine on which
the adapter is in flight, fewer to one with room for another, none to one that is full."""

from __future__ import annotations

from adapters.placement.scheduling.policies.residency import queue_and_bonus
from adapters.placement.scheduling.scheduler import Option
from adapters.placement.scheduling.view import Action, Ask, Fleet, Score

ACTIVE, IDLE, ROOM = 1.0, 0.9, 0.8


def activity(ask: Ask, options: list[Option], _fleet: Fleet, _now: float) -> list[Score]:
    bonus: list[float] = []
    for o in options:
        if ask.version in o.view.uses or o.action is Action.JOIN:
            bonus.append(ACTIVE)
        elif o.action is Action.SERVE:
            bonus.append(IDLE)
        else:
            bonus.append(ROOM if o.view.active < o.view.slots else 0.0)
    return queue_and_bonus(options, bonus)
