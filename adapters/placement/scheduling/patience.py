"""Whether to wait for an engine that holds a version but has no place, or to load it elsewhere at once."""

from __future__ import annotations

from collections.abc import Iterable

from adapters.placement.scheduling.costs import STALL
from adapters.placement.scheduling.view import Action, EngineView, Pick


def worth_waiting(
    pick: Pick,
    view: EngineView,
    holders: Iterable[EngineView],
    *,
    rank: int,
    yields: bool,
    waited: float,
    fills: bool = False,
) -> bool:
    """Whether the request should wait for one of the `holders` that have no place for it, instead of opening
    another replica on `view`, the engine picked. `waited`: seconds so far; `yields` and `fills`: see `Ask`.

    It waits as long as the load would cost, and no longer: at worst, that is twice the cost of knowing how
    long the wait will be (the ski rental problem). What the load stops of tenants that yield is no cost to
    the others."""
    full = [holder.base for holder in holders if holder.full_for(yields=yields, fills=fills)]
    if not full:
        return False
    load = view.costs.activate if pick.action is Action.ACTIVATE else view.costs.load(rank)
    stall = view.stall if yields else view.stall - STALL * view.yielding
    cost = view.base + view.opening + load * stall - min(full)
    return waited * 1000 < cost
