"""Labels, ranks, churn and prefix caches in the simulator."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.planning.simulator.course_figures import figures
from gateway.planning.simulator.engine_model import EngineModel
from gateway.planning.simulator.event_queue import Events
from gateway.planning.simulator.gateway_model import BOUND, REGION, Simulation, Site
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.simulator.simulated_request import BLOCK_TOKENS, Request
from gateway.planning.simulator.workloads import generate
from loadtests.sim.contestants import contestant
from tests.support.search import examples

SITE = Site(engines=4, slots=4, cpu_slots=16, workers=2)


@examples(5)
@given(st.integers(0, 10**6), st.sampled_from(["cost", "random"]), st.booleans(), st.booleans())
def test_a_label_is_never_violated(seed, policy, fair_queue, crowded):
    site = replace(SITE, labels=True, fair_queue=fair_queue)
    workload = generate("noisy", 40 if crowded else 10, 20, seed, adapters=48)
    simulation = Simulation(site, contestant(policy), workload)
    bound = {r.adapter for r in simulation._requests if r.tenant == BOUND}
    outside = [name for name, engine in simulation.engines.items() if engine.labels != REGION]
    for _ in simulation.steps():
        for name in outside:
            assert not bound & simulation._mirror.residency.held(name).keys()
            assert not bound & simulation.engines[name].registered
    sent = {r.engine for r in simulation.course().requests if r.tenant == BOUND and r.engine}
    assert sent
    assert not sent & set(outside)
    others = {r.engine for r in simulation.course().requests if r.tenant != BOUND and r.engine}
    assert others & set(outside), "the others may use every engine"


def test_at_steady_demand_nothing_moves():
    site = Site(engines=4, slots=8, workers=2, pins=frozenset({"a0"}))
    workload = generate("shares", 20, 60, seed=1, adapters=24)
    changes = Simulation(site, contestant("cost+wait"), workload).run().churn
    assert 24 <= changes.loads <= 32
    assert (changes.evictions, changes.undone) == (0, 0)


def test_two_small_engines_do_not_change_their_minds():
    """Bursts of one adapter, others in turn, one of them pinned: four slots for six."""
    hardware = Hardware.of(max_sequences=8)
    site = Site(2, 2, 4, workers=2, fair_queue=True, pins=frozenset({"a5"}), hardware=hardware, slo_ttft=5)
    course = Simulation(site, contestant("cost+wait"), generate("mixed", 5.5, 540, seed=21)).run()
    measured = figures(course, site)
    assert measured.loads_per_thousand + measured.evictions_per_thousand < 30
    assert measured.undone < 0.45


def test_what_is_in_the_prefix_cache_need_not_be_computed():
    hardware, events = Hardware.of(), Events()
    engine = EngineModel("e", 2, 2, hardware, events, rank=16)
    first, second, other = (
        Request(0.0, "t", adapter, 16, 1000, 10, blocks=blocks, answered=(*blocks, 9))
        for adapter, blocks in (("a", (1, 2, 3)), ("a", (1, 2, 4)), ("b", (1, 2, 3)))
    )
    for number, request in enumerate((first, second, other)):
        events.until(10.0 * number)
        request.arrival = events.now
        engine.submit(request)
    events.until(60)
    assert (first.saved, second.saved, other.saved) == (0, 2 * BLOCK_TOKENS, 0)
    assert first.ttft - second.ttft > hardware.prompt_token * 2 * BLOCK_TOKENS / 1000


def test_a_merged_engine_serves_its_adapter_without_loras_cost_and_nothing_else():
    site = replace(SITE, merged=("a0",))
    course = Simulation(site, contestant("cost+wait"), generate("hot", 60, 20, seed=1, adapters=12)).run()
    merged, *others = course.engines
    assert {r.adapter for r in course.requests if r.engine == merged.name} == {"a0"}
    assert {r.adapter for r in course.requests if r.engine != merged.name} > {"a0"}, "what it cannot take"
    assert (merged.loads, merged.activations) == (0, 0) < (others[0].loads, others[0].activations)
    hardware = Hardware.of()
    for serves, adapters in (("a", 0), ("", 1)):
        events, request = Events(), Request(0.0, "t", "a", 16, 1000, 101)
        EngineModel("e", 2, 2, hardware, events, rank=16, serves=serves).submit(request)
        events.until(10)
        assert request.itl == pytest.approx(hardware.step_seconds(1, adapters, 0))
