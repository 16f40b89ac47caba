"""Filter → score → pick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from adapters.model import SlotState
from adapters.placement.scheduling.filters import FULL, VACATED, refusal
from adapters.placement.scheduling.trials import tried, untried
from adapters.placement.scheduling.view import Action, Ask, EngineView, Fleet, Pick, Score

_ACTIONS = {
    SlotState.RESIDENT: Action.SERVE,
    SlotState.CACHED: Action.ACTIVATE,
    SlotState.LOADING: Action.JOIN,
    SlotState.LOST: Action.LOAD,
}


OPENS = frozenset({Action.LOAD, Action.ACTIVATE})
"""Actions that make another replica."""


def action(view: EngineView, version: str, now: float) -> Action | None:
    """What serving the version on this engine takes; None: its slot there is being vacated."""
    if not version:
        return Action.SERVE
    state = view.state(version, now)
    return Action.LOAD if state is None else _ACTIONS.get(state)


@dataclass(frozen=True, slots=True)
class Option:
    """An engine that may serve the request, and what that takes."""

    view: EngineView
    action: Action


Policy = Callable[[Ask, list[Option], Fleet, float], list[Score]]
"""Scores engines that have passed the filters, at that monotonic time. A score for each option, in the same
order. The lowest cost is chosen, and of equals the first. One file each in `policies/`."""
Picker = Callable[[Ask, Fleet, float], Pick | None]
"""A policy's faster way to the lowest score, without the others."""


@dataclass(slots=True)
class Scheduler:
    """Chooses the engine of each request of one worker.

    Engines on trial are a last resort, and after them those on which the request already failed. The decision
    is a hint as far as slots are concerned: the claim in the store decides.
    """

    policy: Policy
    picker: Picker | None = None
    """If None, the policy scores every engine for each decision."""

    def pick(self, ask: Ask, fleet: Fleet, now: float) -> Pick | None:
        """The engine for the request; None: no engine can serve it now. `now`: monotonic seconds."""
        if fleet.trials:
            if (pick := tried(ask, fleet, now)) is not None:
                return pick
            others = untried(ask, fleet)
            pick = self._pick(others, fleet, now)
            if pick is not None or self._waits(others, fleet, now):
                return pick
        pick = self._pick(ask, fleet, now)
        if pick is None and ask.excluded and not self._waits(ask, fleet, now):
            pick = self._pick(replace(ask, excluded=()), fleet, now)
        return pick

    def scores(self, ask: Ask, fleet: Fleet, now: float) -> list[Score]:
        """Every engine of the fleet, best first; those that cannot serve the request come last, each with
        the reason. Engines on trial count as such while another can serve it."""
        options, refused = options_of(ask, fleet, now)
        scores = self.policy(ask, options, fleet, now)
        order = sorted(
            range(len(scores)), key=lambda i: (scores[i].engine in ask.excluded, scores[i].cost or 0.0)
        )
        scores = [scores[i] for i in order]
        apart = [score for score in scores if score.engine in fleet.trials]
        if apart and len(apart) < len(scores):
            refused = [replace(s, cost=None, reason=_trial(fleet.trials[s.engine])) for s in apart] + refused
            scores = [score for score in scores if score.engine not in fleet.trials]
        return scores + refused

    @staticmethod
    def _waits(ask: Ask, fleet: Fleet, now: float) -> bool:
        """Whether an engine that is not a last resort will have room."""
        _, refused = options_of(ask, fleet, now)
        return any(score.reason == FULL and score.engine not in ask.excluded for score in refused)

    def _pick(self, ask: Ask, fleet: Fleet, now: float) -> Pick | None:
        if self.picker is not None:
            return self.picker(ask, fleet, now)
        options, _ = options_of(ask, fleet, now)
        options = [o for o in options if o.view.name not in ask.excluded]
        best: Score | None = None
        for score in self.policy(ask, options, fleet, now):
            if score.cost is not None and (best is None or best.cost is None or score.cost < best.cost):
                best = score
        return None if best is None or best.cost is None else Pick(best.engine, best.action, best.cost)


def _trial(share: float) -> str:
    return f"on trial: gets {share:.0%} of the requests for what it holds"


def options_of(ask: Ask, fleet: Fleet, now: float) -> tuple[list[Option], list[Score]]:
    """The engines that may serve the request, and those that may not."""
    options: list[Option] = []
    refused: list[Score] = []
    more = replicas_left(ask, fleet, now)
    for view in fleet.engines.values():
        fleet.check(view)
        act = action(view, ask.version, now)
        if act is None:
            reason = VACATED
        elif act in OPENS and not more:
            reason = f"already on its maximum number of engines ({ask.max_replicas})"
        else:
            reason = refusal(view, ask, act)
        if reason or act is None:
            refused.append(Score(view.name, None, act or Action.LOAD, reason))
        else:
            options.append(Option(view, act))
    return options, refused


def replicas_left(ask: Ask, fleet: Fleet, now: float) -> bool:
    """Whether one more engine may hold the version."""
    if ask.max_replicas is None:
        return True
    replicas = 0
    for view in fleet.holding(ask.version):
        fleet.check(view)
        if not view.blocked and view.state(ask.version, now) in {SlotState.RESIDENT, SlotState.LOADING}:
            replicas += 1
    return replicas < ask.max_replicas
