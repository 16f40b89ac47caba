"""Labels, ranks, churn and prefix caches in the simulator."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.planning.simulator.course_figures import figures
from gateway.planning.simulator.engine_model import EngineModel
from gateway.planning.simulator.event_queue import Events
from gateway.planning.simulator.gateway_model import BOUND, REGION, SMALL_RANK, Simulation, Site
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.simulator.simulated_request import Outcome, Request
from gateway.planning.simulator.workloads import BIG_RANK, PREFIX_TOKENS, generate
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
    hardware = Hardware.of("h100", max_sequences=8)
    site = Site(2, 2, 4, workers=2, fair_queue=True, pins=frozenset({"a5"}), hardware=hardware, slo_ttft=5)
    course = Simulation(site, contestant("cost+wait"), generate("mixed", 4.5, 540, seed=21)).run()
    measured = figures(course, site)
    assert measured.loads_per_thousand + measured.evictions_per_thousand < 30
    assert measured.undone < 0.45


def test_adapters_of_big_rank_stay_in_their_pool():
    site = replace(SITE, pool=1)
    workload = generate("W2", 10, 20, seed=1, adapters=40, big_ranks=0.25)
    simulation = Simulation(site, contestant("cost"), workload)
    course = simulation.run()
    assert [engine.max_rank for engine in course.engines] == [BIG_RANK, SMALL_RANK, SMALL_RANK, SMALL_RANK]
    assert {r.engine for r in course.requests if r.rank == BIG_RANK and r.engine} == {"e0"}
    assert len({r.engine for r in course.requests if r.rank < BIG_RANK and r.engine}) > 1


def test_a_beginning_in_the_prefix_cache_need_not_be_computed():
    hardware, events = Hardware(), Events()
    engine = EngineModel("e", 2, 2, hardware, events, rank=16)
    first, second, other = (
        Request(0.0, "t", adapter, 16, 1000, 10, prefix=1, prefix_tokens=PREFIX_TOKENS) for adapter in "aab"
    )
    for number, request in enumerate((first, second, other)):
        events.until(10.0 * number)
        request.arrival = events.now
        engine.submit(request)
    events.until(60)
    assert (first.saved, second.saved, other.saved) == (0, PREFIX_TOKENS, 0)
    assert first.ttft - second.ttft > hardware.prompt_token * PREFIX_TOKENS / 1000


def test_prefix_caches_shrink_as_sequences_need_the_memory():
    hardware = replace(Hardware(), kv_tokens=3000, slot_tokens=0, slot_tokens_per_rank=0)
    events = Events()
    engine = EngineModel("e", 2, 2, hardware, events, rank=16)

    def ask(prefix: int, prompt: int) -> Request:
        return Request(
            events.now, "t", "a", 16, prompt, 10, prefix=prefix, prefix_tokens=600 if prefix else 0
        )

    for request in (ask(1, 1000), ask(0, 2900), again := ask(1, 1000)):
        engine.submit(request)
        events.until(events.now + 30)
    assert again.saved == 0
    assert engine._prefix_tokens <= engine._kv_free


def test_affinity_finds_more_of_the_prompts_in_caches():
    site = Site(engines=4, slots=8, hardware=Hardware.of("h100", kv_tokens=100_000))
    workload = generate("hot", 30, 60, seed=1, adapters=20, prefixes=0.8)

    def saved(policy):
        return figures(Simulation(site, contestant(policy), workload).run(), site).prefix_ratio

    assert saved("cost") > saved("cost+no-affinity") > 0.05


def test_without_common_beginnings_nothing_is_saved():
    course = Simulation(SITE, contestant("cost"), generate("W1", 5, 20, seed=1)).run()
    assert {r.saved for r in course.requests} == {0}
    assert {r.outcome for r in course.requests} == {Outcome.DONE}
