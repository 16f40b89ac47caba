"""The less loaded of two engines drawn at random (Mitzenmacher, 2001)."""

from __future__ import annotations

import random

from adapters.placement.scheduling.scheduler import Option
from adapters.placement.scheduling.view import Ask, Fleet, Score


class PowerOfTwo:
    """Mutable: the generator. Its seed makes a simulation repeatable."""

    def __init__(self) -> None:
        self._random = random.Random(0)  # noqa: S311 - no secret

    def __call__(self, _ask: Ask, options: list[Option], _fleet: Fleet, _now: float) -> list[Score]:
        drawn = {o.view.name for o in self._random.sample(options, min(2, len(options)))}
        return [
            Score(
                o.view.name,
                float(o.view.load) if o.view.name in drawn else None,
                o.action,
                f"{o.view.load} in flight",
            )
            for o in options
        ]
