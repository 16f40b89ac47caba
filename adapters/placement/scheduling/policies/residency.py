"""Residency minus queue, as gateways do that know which engine holds which adapter: a holder wins unless its
queue is much longer than the others'."""

from __future__ import annotations

from adapters.placement.scheduling.scheduler import Option
from adapters.placement.scheduling.view import Action, Ask, Fleet, Score

BONUS = {Action.SERVE: 1.0, Action.JOIN: 0.8, Action.ACTIVATE: 0.5, Action.LOAD: 0.0}


def residency(_ask: Ask, options: list[Option], _fleet: Fleet, _now: float) -> list[Score]:
    return queue_and_bonus(options, [BONUS[o.action] for o in options])


def queue_and_bonus(options: list[Option], bonus: list[float]) -> list[Score]:
    """Relative queue length, from 0 for the shortest to 1 for the longest, minus the bonus."""
    loads = [o.view.load for o in options]
    low, high = min(loads, default=0), max(loads, default=0)
    return [
        Score(
            o.view.name,
            (load - low) / max(1, high - low) - extra,
            o.action,
            f"{load} in flight, bonus {extra:g}",
        )
        for o, load, extra in zip(options, loads, bonus, strict=True)
    ]
