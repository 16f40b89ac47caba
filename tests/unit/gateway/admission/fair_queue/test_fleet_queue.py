import pytest

from adapters.placement.scheduling.view import PROMPT_LINE, EngineView
from gateway.admission.fair_queue.fleet_queue import FleetQueue, reserve


def test_a_guess_that_would_refuse_is_a_careful_one():
    """Most answers have been long, and the next may be short: nobody is refused because of the long ones."""
    queue = FleetQueue()
    for number, seconds in enumerate([6.0] * 12 + [0.4] * 8):
        charge = queue.begin("a", 1.0, 1, 10, 100.0 * number)
        queue.end(charge, 10, 10, 100.0 * number + seconds, answered=True)
    assert queue.duration == pytest.approx(0.4)
    assert queue.rate(10_000.0) == pytest.approx(1 / 0.4)


@pytest.mark.parametrize(
    ("credit", "others", "places"),
    [(65, 0, 4), (65, 20, 4), (65, 33, 7), (65, 45, 13), (65, 64, 16), (9, 4, 2), (0, 0, 0)],
)
def test_the_more_the_others_have_on_an_engine_the_more_places_are_left_to_them(credit, others, places):
    assert reserve(credit, others) == places


@pytest.fixture
def flooded() -> tuple[FleetQueue, EngineView]:
    """A tenant has 30 requests on an engine with 65 places, of which this worker knows; three others have 5
    here, and as many requests again are on other workers."""
    queue, view = FleetQueue(), EngineView("e0", 8, 8, 64)
    for tenant, requests in {"flood": 30, "a": 5, "b": 5, "c": 5}.items():
        for _ in range(requests):
            queue.begin(tenant, 1.0, 1, 10, 0.0).engine = view.name
            view.sent("", 0)
    view.heard(15, 0, 0)
    queue.divide([(view, 65)], 0.0)
    return queue, view


def test_who_has_far_more_in_flight_than_its_share_yields(flooded):
    queue, view = flooded
    assert queue.yields("flood", 1)
    assert not queue.yields("a", 1)
    assert view.yielding == 40
    assert view.last_places == 65 - reserve(65, 20)
    queue.hear({"w1": [[1, "a", 0, 90, 1.0, 0, 0], [1, "flood", 0, 0, 4.0, 0, 0]]}, 1.0)
    queue.divide([(view, 65)], 1.0)
    assert queue.yields("a", 1)
    assert not queue.yields("flood", 1), "its share is four times the others'"


def test_who_yields_does_not_let_prompts_queue_in_an_engine(flooded):
    _, view = flooded
    view.heard(0, int(PROMPT_LINE / view.costs.per_prompt_token), 0)
    assert not view.full_for(yields=True)
    view.sent("", 100)
    assert view.full_for(yields=True)
    assert not view.full_for(yields=False)
