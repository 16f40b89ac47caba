"""The engine with the fewest requests in flight."""

from __future__ import annotations

from adapters.placement.scheduling.scheduler import Option
from adapters.placement.scheduling.view import Ask, Fleet, Score


def least_loaded(_ask: Ask, options: list[Option], _fleet: Fleet, _now: float) -> list[Score]:
    return [Score(o.view.name, float(o.view.load), o.action, f"{o.view.load} in flight") for o in options]
