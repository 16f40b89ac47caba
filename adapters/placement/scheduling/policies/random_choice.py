"""Any engine, at random."""

from __future__ import annotations

import random

from adapters.placement.scheduling.scheduler import Option
from adapters.placement.scheduling.view import Ask, Fleet, Score


class RandomChoice:
    """Mutable: the generator. Its seed makes a simulation repeatable."""

    def __init__(self) -> None:
        self._random = random.Random(0)  # noqa: S311 - no secret

    def __call__(self, _ask: Ask, options: list[Option], _fleet: Fleet, _now: float) -> list[Score]:
        return [Score(o.view.name, self._random.random(), o.action, "drawn") for o in options]
