"""A gateway that routes by the controller's targets."""

from __future__ import annotations

from collections import Counter, defaultdict, deque

from adapters.placement.scheduling.scheduler import Option
from adapters.placement.scheduling.view import Action, Ask, Fleet, Score
from loadtests.sim.dynamo.controller import Algorithm, Controller

TICK = 3.0
"""Seconds between decisions."""
WINDOW = 30
"""Ticks of arrivals that count."""
SMOOTHING = 0.5
"""Weight of the latest window in the moving average."""
NO_TARGET = 1e9


class Load:
    """An adapter's arrivals in the window, smoothed. Mutable."""

    def __init__(self) -> None:
        self._ticks: deque[Counter[str]] = deque(maxlen=WINDOW)
        self._smoothed: dict[str, float] = {}

    def after(self, arrived: Counter[str]) -> dict[str, int]:
        """Adapter → load, if there is any, when that has arrived in the last tick."""
        self._ticks.append(arrived)
        total: Counter[str] = sum(self._ticks, Counter())
        smoothed = self._smoothed
        for name in {*total, *smoothed}:
            smoothed[name] = SMOOTHING * total[name] + (1 - SMOOTHING) * smoothed.get(name, total[name])
            if smoothed[name] < SMOOTHING:
                del smoothed[name]
        return {name: int(value + 0.5) for name, value in smoothed.items()}


class DynamoPolicy:
    """Among an adapter's targets, those that hold it come first, and of these the least loaded.

    Mutable: what has arrived, and the controller with the targets.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm: Algorithm = algorithm
        self.controller: Controller | None = None
        self._arrived: Counter[str] = Counter()
        self._load = Load()
        self._tick = 0

    def __call__(self, ask: Ask, options: list[Option], fleet: Fleet, now: float) -> list[Score]:
        if self.controller is None:
            slots = {view.name: view.slots for view in fleet.engines.values()}
            self.controller = Controller(
                self._algorithm, slots, lambda version: [*fleet.homes.order(version)]
            )
        while (self._tick + 1) * TICK <= now:
            self._tick += 1
            self._decide(self.controller, fleet, now)
        self._arrived[ask.version] += 1
        targets = self._candidates(self.controller, ask.version, options)
        return [
            Score(o.view.name, o.view.load + NO_TARGET * (o.view.name not in targets), o.action, "")
            for o in options
        ]

    def _decide(self, controller: Controller, fleet: Fleet, now: float) -> None:
        loaded: dict[str, set[str]] = defaultdict(set)
        for view in fleet.engines.values():
            for version in view.held:
                if view.holds(version, now):
                    loaded[version].add(view.name)
        arrived, self._arrived = self._arrived, Counter()
        loads = arrived if self._algorithm == "random" else self._load.after(arrived)
        controller.update(loads, {} if self._algorithm == "random" else loaded)

    @staticmethod
    def _candidates(controller: Controller, version: str, options: list[Option]) -> set[str]:
        holding = {o.view.name for o in options if o.action is Action.SERVE}
        targets = controller.targets.get(version)
        if targets is None:
            return holding or {o.view.name for o in options}
        if version not in controller.active:
            return set(targets[:1])
        return holding & set(targets) or set(targets)
