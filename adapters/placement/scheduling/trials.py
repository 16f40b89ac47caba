"""Which requests go to an engine on trial. Pure.

A request's lot decides, and nothing that the engines do: so the requests that a trial compares were assigned
at random. A trial delays no request: those that its engine cannot serve at once go to the others, and none is
the reason for a load there. For all others, engines on trial are a last resort.
"""

from __future__ import annotations

from dataclasses import replace

from adapters.placement.scheduling.filters import refusal
from adapters.placement.scheduling.view import Action, Ask, Fleet, Pick


def tried(ask: Ask, fleet: Fleet, now: float) -> Pick | None:
    """The engine on trial to which the request's lot falls, if it holds the version and has room."""
    lot = ask.lot
    for name, share in fleet.trials.items():
        lot -= share
        if lot >= 0:
            continue
        view = fleet.engines[name]
        fleet.check(view)
        if name in ask.excluded or not view.holds(ask.version, now) or refusal(view, ask, Action.SERVE):
            return None
        option = (name, Action.SERVE, view.base)
        return Pick(*option, (option,), len(fleet.engines), on_trial=True)
    return None


def untried(ask: Ask, fleet: Fleet) -> Ask:
    """The request, for the engines that are not on trial."""
    return replace(ask, excluded={*ask.excluded, *fleet.trials})
