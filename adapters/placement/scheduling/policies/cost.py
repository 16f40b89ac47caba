"""Lowest expected delay: the queue, one more distinct adapter, and what a load costs everyone on the engine.

An engine that holds the version competes with those that would have to load it, so a hot adapter gets another
replica as soon as that is cheaper than its queue, and an idle engine far away is left alone as long as the
holder is quick. The terms are from the simulation in `loadtests/sim`, see docs/placement.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from adapters.placement.scheduling.filters import refusal
from adapters.placement.scheduling.homes import HOMES
from adapters.placement.scheduling.prefix_cache import SAVED
from adapters.placement.scheduling.scheduler import OPENS, Option, action, replicas_left
from adapters.placement.scheduling.view import Action, Ask, EngineView, Fleet, Pick, Score

Scored = tuple[str, Action, float]
"""Engine, what serving there takes, milliseconds."""
HOME = 60.0
"""A version's first loads prefer its home engines, so that an adapter that comes back finds the copy that it
left in some engine's memory: no charge on the first home, HOME where it has none."""


def cost(ask: Ask, options: list[Option], fleet: Fleet, _now: float) -> list[Score]:
    """Every term of every option."""
    homes = fleet.homes.first(ask.version)
    return [_score(ask, option, homes) for option in options]


def pick(ask: Ask, fleet: Fleet, now: float) -> Pick | None:
    """The option with the lowest score, found without scoring engines that cannot have it: holders come
    first, and another engine's terms without its load are a lower bound."""
    scored: list[Scored] = []
    if not ask.version:
        best = _cheapest_of_all(ask, fleet, scored)
    else:
        more = replicas_left(ask, fleet, now)
        placed = [
            (view, act)
            for view in fleet.holding(ask.version)
            if (act := action(view, ask.version, now)) and (more or act not in OPENS)
        ]
        best = _cheapest(placed, ask, fleet, scored)
        if more:
            best = _cheapest_load(ask, fleet, best, scored)
    if best is None:
        return None
    cached = round(fleet.engines[best[0]].cached_tokens(ask)) if ask.seen else 0
    return Pick(*best, tuple(scored), len(fleet.engines), cached)


def _cheapest(
    options: Iterable[tuple[EngineView, Action]], ask: Ask, fleet: Fleet, scored: list[Scored]
) -> Scored | None:
    """Among engines that have the version in some form."""
    best: Scored | None = None
    for view, act in options:
        if best is not None and view.base - (_saved(view, ask) if ask.seen else 0.0) >= best[2]:
            continue
        if _allowed(view, ask, fleet, act):  # first, because it updates the terms
            option = (view.name, act, _value(view, ask, act))
            scored.append(option)
            if best is None or option[2] < best[2]:
                best = option
    return best


def _cheapest_of_all(ask: Ask, fleet: Fleet, scored: list[Scored]) -> Scored | None:
    """For the base model, which all engines hold but merged ones."""
    warm = [(view, Action.SERVE) for name in ask.seen if (view := fleet.engines.get(name)) is not None]
    best = _cheapest(warm, ask, fleet, scored)  # these may be cheaper than their queues tell
    ranking, taken = fleet.by_base(), list[int]()
    while (lowest := ranking.take(math.inf if best is None else best[2])) is not None:
        place, view = lowest
        taken.append(place)
        if view.name not in ask.seen and _allowed(view, ask, fleet, Action.SERVE):
            option = (view.name, Action.SERVE, view.base)
            scored.append(option)
            if best is None or option[2] < best[2]:
                best = option
    ranking.put_back(taken)
    return best


def _cheapest_load(ask: Ask, fleet: Fleet, best: Scored | None, scored: list[Scored]) -> Scored | None:
    """An engine where loading the version is cheaper than `best`; otherwise `best`. Of equals, a home, and
    then the first of the fleet.

    All engines but the homes have the same charge, so that the first of the others that may load it is the
    cheapest of them."""
    ranking, taken = fleet.by_load(ask.rank), list[int]()
    if best is not None and not ranking.any(best[2]):
        return best
    homes = fleet.homes.first(ask.version)
    for name in homes:
        view = fleet.engines[name]
        if ask.version not in view.held and _allowed(view, ask, fleet, Action.LOAD):
            value = _value(view, ask, Action.LOAD) + _from_home(name, homes)
            if best is None or value < best[2]:
                best = (name, Action.LOAD, value)
                scored.append(best)
    limit = math.inf if best is None else best[2] - HOME
    while (candidate := ranking.take(limit)) is not None:
        place, view = candidate
        taken.append(place)
        if view.name in homes or ask.version in view.held or view.refuses(ask):
            continue
        if not _allowed(view, ask, fleet, Action.LOAD):
            continue
        value = _value(view, ask, Action.LOAD)
        if value < limit:
            limit, best = value, (view.name, Action.LOAD, value + HOME)
            scored.append(best)
    ranking.put_back(taken)
    return best


def _from_home(name: str, homes: Mapping[str, int]) -> float:
    """Milliseconds charged because the engine is not the version's first home."""
    return HOME * homes.get(name, HOMES) / HOMES


def _allowed(view: EngineView, ask: Ask, fleet: Fleet, act: Action) -> bool:
    if view.name in ask.excluded:
        return False
    fleet.check(view)
    return not refusal(view, ask, act)


def _value(view: EngineView, ask: Ask, act: Action) -> float:
    """Milliseconds, without the home term."""
    if act is Action.LOAD:
        return view.load_cost(ask.rank)
    value = view.base
    if act is not Action.SERVE:  # a holder has its slot
        value += view.opening
    if act is Action.ACTIVATE and not view.evicted(ask.version):
        value += view.costs.activate * view.stall
    elif act is Action.ACTIVATE:  # read from disk, too
        value += view.costs.load(ask.rank) * (view.stall + view.held.loading)
    elif act is Action.JOIN:
        value += view.costs.load(ask.rank) / 2
    if ask.seen:
        value -= _saved(view, ask)
    return value


def _saved(view: EngineView, ask: Ask) -> float:
    """Milliseconds that its prefix cache saves."""
    return SAVED * view.costs.per_prompt_token * view.cached_tokens(ask)


def _score(ask: Ask, option: Option, homes: Mapping[str, int]) -> Score:
    view, act = option.view, option.action
    terms = [("queue", view.base)]
    if act is not Action.SERVE:
        terms.append(("another adapter in flight", view.opening))
    saved = 0.0 if act is Action.LOAD else _saved(view, ask)
    if saved:
        terms.append(("prompt tokens in its cache", -saved))
    if act is not Action.SERVE:
        terms.append((str(act), _value(view, ask, act) - sum(ms for _, ms in terms)))
    if act is Action.LOAD and ask.version not in view.held:
        terms.append(("distance from home", _from_home(view.name, homes)))
    return Score(
        view.name,
        sum(ms for _, ms in terms),
        act,
        _reason(view, act, evicted=view.evicted(ask.version)),
        tuple(terms),
    )


def _reason(view: EngineView, act: Action, *, evicted: bool) -> str:
    load = f"{view.load} in flight"
    if view.share < 1:
        load += f"; slow start, at {view.share:.0%} of its share"
    words = {
        Action.SERVE: "holds it",
        Action.ACTIVATE: "must read it from disk again" if evicted else "has it in CPU memory",
        Action.JOIN: "is loading it",
        Action.LOAD: "load it",
    }
    wait = (
        "; every slot is in use"
        if act in {Action.LOAD, Action.ACTIVATE} and view.active >= view.slots
        else ""
    )
    return f"{words[act]}; {load}{wait}"
