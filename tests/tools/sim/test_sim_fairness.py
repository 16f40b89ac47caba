"""The fair queue in the simulator: one tenant's flood, and tenants that all ask for too much."""

from dataclasses import replace

import pytest

from gateway.planning.simulator.gateway_model import Simulation, Site
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.simulator.simulated_request import Request
from gateway.planning.simulator.workloads import FLOOD_BEGINS, FLOOD_SECONDS, TENANTS, generate
from loadtests.sim.contestants import contestant
from loadtests.sim.fairness import FLOODER, backlog, both, flood, served_of

SITE = Site(engines=2, slots=16, hardware=Hardware.of("h100", max_sequences=24))
WAIT = contestant("cost+wait")
RATE, TOO_MUCH = 5.0, 20.0


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 4])
def test_a_flood_hardly_reaches_the_others(workers):
    site = replace(SITE, workers=workers)
    plain, fair = (flood(each, WAIT, RATE, seed=41, adapters=TENANTS) for each in both(site))
    assert plain.ratio > 10, "a flood that the engines can take shows nothing"
    assert fair.p99 < plain.p99 / 2
    assert fair.p50 < plain.p50 / 3
    assert fair.done == 1
    assert fair.jain > 0.99
    assert fair.throughput > 0.95 * plain.throughput


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 4])
def test_tenants_that_ask_for_too_much_get_the_same(workers):
    site = replace(SITE, workers=workers)
    plain, fair = (backlog(each, WAIT, TOO_MUCH, seed=41, adapters=TENANTS) for each in both(site))
    assert fair.spread < plain.spread / 2
    assert fair.spread < 5 * fair.longest


def test_a_tenant_of_twice_the_weight_gets_twice_as_much():
    heavy = [f"t{n}" for n in range(4)]
    site = replace(SITE, fair_queue=True, weights=tuple((tenant, 2.0) for tenant in heavy))
    found = backlog(site, WAIT, TOO_MUCH, seed=41, adapters=TENANTS)
    light = found.served.keys() - heavy
    assert found.of(heavy) / found.of(light) == pytest.approx(2, rel=0.1)


def test_a_high_priority_goes_first_however_much_the_others_ask_for():
    site = replace(SITE, fair_queue=True, levels=(("t1", 0), ("t2", 2)))
    found = backlog(site, WAIT, TOO_MUCH, seed=41, adapters=TENANTS)
    normal = found.of(found.served.keys() - {"t1", "t2"})
    assert found.served["t1"] > 1.5 * normal
    assert found.served["t2"] < normal / 4


def test_the_flood_comes_on_top_of_the_same_requests():
    def rows(name, *, but):
        requests = generate(name, RATE, 120, seed=41).requests()
        return [(r.arrival, r.adapter) for r in requests if r.tenant != but]

    assert rows("flood", but=FLOODER) == rows("shares", but=FLOODER)
    more = len(rows("flood", but="")) - len(rows("shares", but=""))
    assert more == pytest.approx(20 * RATE / TENANTS * FLOOD_SECONDS, rel=0.15)
    late = [r for r in generate("flood", RATE, 120, seed=41).requests() if r.tenant == FLOODER]
    assert sum(FLOOD_BEGINS <= r.arrival < FLOOD_BEGINS + FLOOD_SECONDS for r in late) > 0.9 * len(late)


def test_a_request_is_served_its_prompt_at_the_first_token_and_its_answer_until_the_end():
    request = Request(0.0, "t", "a", 8, 100, 50, first=2.0, end=4.0)
    assert [served_of(request, at) for at in (1.0, 2.0, 3.0, 4.0, 9.0)] == [0, 100, 150, 200, 200]


def test_what_an_engine_has_generated_is_known_while_it_runs():
    site = Site(engines=1)
    simulation = Simulation(site, WAIT, generate("shares", 2, 20, seed=1))
    engine = simulation.engines["e0"]
    before: dict[int, int] = {}
    for _ in simulation.steps():
        for _, _, request in engine._decoding:
            tokens = engine.generated(request)
            assert before.get(id(request), 1) <= tokens <= request.output
            before[id(request)] = tokens
    assert len(before) > 10
