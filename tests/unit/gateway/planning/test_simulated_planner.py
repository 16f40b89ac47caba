"""The planner, labels, ranks and prefix caches in the simulator."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.planning.simulator.course_figures import figures
from gateway.planning.simulator.engine_model import EngineModel
from gateway.planning.simulator.event_queue import Events
from gateway.planning.simulator.gateway_model import BOUND, REGION, SMALL_RANK, Simulation, Site
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.simulator.simulated_request import Outcome, Request
from gateway.planning.simulator.workloads import BIG_RANK, PREFIX_TOKENS, Workload, generate
from loadtests.sim.contestants import contestant
from tests.support.search import examples

SITE = Site(engines=4, slots=4, cpu_slots=16, workers=2)


@examples(5)
@given(
    st.integers(0, 10**6), st.sampled_from(["cost", "cost+planner", "random"]), st.booleans(), st.booleans()
)
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


def steady(seconds: float, *, hot: int) -> Workload:
    """`hot` requests a second for one adapter and one for each of four others, evenly."""
    arrival = np.arange(0, seconds, 1 / (hot + 4))
    number = np.arange(len(arrival)) % (hot + 4)
    adapter = np.where(number < 4, number + 1, 0)
    rows = len(arrival)
    prompt, output, rank = np.full(rows, 400), np.full(rows, 150), np.full(rows, 16)
    return Workload(arrival, adapter, adapter, rank, prompt, output)


def test_plans_come_to_rest_under_a_constant_load():
    """Here the planner alone opens replicas."""
    simulation = Simulation(Site(engines=4), contestant("landed-unprobed+planner"), steady(300, hot=40))
    for now in simulation.steps():
        if now > 299:
            break
    assert simulation.leader
    assert simulation.leader.moves["replicate"] >= 1
    assert simulation.leader.last_move < 200


def test_the_planner_takes_back_what_nobody_needs_any_more():
    busy = steady(60, hot=60)
    after = steady(240, hot=1)
    workload = replace(
        busy,
        **{
            name: np.concatenate(
                [getattr(busy, name), getattr(after, name) + (60 if name == "arrival" else 0)]
            )
            for name in ("arrival", "adapter", "tenant", "rank", "prompt", "output")
        },
    )
    simulation = Simulation(Site(engines=4), contestant("cost+planner"), workload)
    most = 0
    for now in simulation.steps():
        held = len(simulation._mirror.residency.holders("a0"))
        most = max(most, held)
        if now > 295:
            break
    assert most > 1
    assert held == 1


def test_adapters_of_big_rank_stay_in_their_pool():
    site = replace(SITE, pool=1)
    workload = generate("W2", 10, 20, seed=1, adapters=40, big_ranks=0.25)
    simulation = Simulation(site, contestant("cost+planner"), workload)
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
    site = Site(engines=4, slots=8)
    workload = generate("hot", 30, 60, seed=1, adapters=20, prefixes=0.8)

    def saved(policy):
        return figures(Simulation(site, contestant(policy), workload).run(), site).prefix_ratio

    assert saved("cost") > saved("cost+no-affinity") > 0.05


def test_without_common_beginnings_nothing_is_saved():
    course = Simulation(SITE, contestant("cost"), generate("W1", 5, 20, seed=1)).run()
    assert {r.saved for r in course.requests} == {0}
    assert {r.outcome for r in course.requests} == {Outcome.DONE}
