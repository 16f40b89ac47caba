import pytest

from adapters.placement.scheduling.patience import worth_waiting
from adapters.placement.scheduling.view import Action, EngineView, Pick

RANK = 16


def engine(name: str, *, requests: int = 0, limit: float = 10, last_places: float = 9) -> EngineView:
    view = EngineView(name, slots=4, cpu_slots=8, max_rank=64, limit=limit, last_places=last_places)
    for _ in range(requests):
        view.sent("v", 10)
    return view


def waits(*holders: EngineView, yields: bool = False, waited: float = 0.0) -> bool:
    pick = Pick("other", Action.LOAD, 1.0)
    return worth_waiting(pick, engine("other"), holders, rank=RANK, yields=yields, waited=waited)


def test_nothing_to_wait_for():
    assert not waits()
    assert not waits(engine("a", requests=3)), "the policy has found the load cheaper than its queue"


def test_a_full_holder_is_waited_for_as_long_as_the_load_would_cost():
    full = engine("a", requests=10, limit=10)
    other = engine("other")
    cost = (other.base + other.opening + other.costs.load(RANK) * other.stall - full.base) / 1000
    assert cost > 0
    assert waits(full, waited=cost * 0.99)
    assert not waits(full, waited=cost * 1.01)


@pytest.mark.parametrize("yields", [True, False])
def test_who_leaves_the_last_places_to_others_waits_rather_than_opening_a_replica(yields):
    assert waits(engine("a", requests=9, last_places=9), yields=yields) is yields


def test_what_a_load_stops_of_tenants_that_yield_is_no_cost_to_the_others():
    other, full = engine("other", requests=8), engine("a", requests=10)
    cost = (other.base + other.opening + other.costs.load(RANK) * other.stall - full.base) / 1000
    pick = Pick("other", Action.LOAD, 1.0)
    other.yielding = 6
    for yields in (True, False):
        waits_on = worth_waiting(pick, other, [full], rank=RANK, yields=yields, waited=cost * 0.9)
        assert waits_on is yields
