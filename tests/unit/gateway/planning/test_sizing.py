"""The fewest engines that are enough, and what is simulated to find them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.placement.scheduling.figures import ENGINE_MODELS
from gateway.planning.simulator.course_figures import figures
from gateway.planning.simulator.gateway_model import Simulation, Site
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.sizing import Goal, fewest, hardware_of, size
from gateway.planning.traffic import AdapterUse, Stated, Used, uses_of
from loadtests.sim.contestants import contestant

GOAL = Goal(slo_ttft=2.0, slo_itl=0.1, attainment=0.95)
SITE = Site(slots=8, cpu_slots=64)
TRAFFIC = Stated("W2", 15.0, 40, 800.0, 100.0)


@given(st.integers(1, 300), st.integers(1, 50), st.integers(1, 20))
def test_fewest_finds_the_boundary_and_tries_few(boundary, least, factor):
    tried = []
    most = least * factor

    def enough(engines):
        tried.append(engines)
        assert least <= engines <= most
        return engines >= boundary

    found = fewest(enough, least, most)
    assert found == (max(least, boundary) if boundary <= most else None)
    assert len(tried) == len(set(tried)) <= 2 * most.bit_length() + 2


def test_the_answer_is_enough_and_one_engine_less_is_not():
    workload = TRAFFIC.made(90, seed=3)
    found = size(SITE, [workload], GOAL)
    assert found is not None
    assert found.attainment >= GOAL.attainment
    assert found.ttft_p50 <= found.ttft_p99
    fewer = replace(SITE, engines=found.engines - 1)
    assert found.engines > 1
    course = Simulation(fewer, contestant("cost"), workload).run()
    assert figures(course, fewer).attainment < GOAL.attainment


def test_a_slow_gpu_is_offered_as_many_engines_as_its_prompts_take():
    site = replace(SITE, hardware=hardware_of("h100", 0.2, None))
    assert size(site, [TRAFFIC.made(30, seed=1)], GOAL) is not None


def test_a_gpu_too_slow_for_the_objective_gets_no_number_of_engines():
    site = replace(SITE, hardware=hardware_of("h100", 0.02, None))
    assert size(site, [TRAFFIC.made(30, seed=1)], GOAL) is None


@pytest.mark.parametrize("model", ENGINE_MODELS)
def test_speed_changes_compute_and_nothing_else(model):
    base, half = Hardware.of(model), hardware_of(model, 0.5, 40_000)
    for batch in ((1, 0, 0), (60, 30, 0), (200, 30, 512)):
        assert half.step_seconds(*batch) == pytest.approx(2 * base.step_seconds(*batch))
    assert (half.load_seconds(16), half.activate) == (base.load_seconds(16), base.activate)
    assert (half.kv_tokens, half.slot_tokens_per_rank) == (40_000, base.slot_tokens_per_rank)
    assert hardware_of(model, 1.0, None) == base


def test_resampled_traffic_has_the_hours_rate_shares_and_lengths():
    uses = (
        AdapterUse("acme/a", 54_000, 54_000 * 500, 54_000 * 80),
        AdapterUse("bolt/b", 18_000, 18_000 * 2000, 18_000 * 20),
        AdapterUse("", 18_000, 18_000 * 100, 18_000 * 300),
    )
    used = Used(uses, rank=16)
    assert used.rate == 25
    made = used.made(800, seed=1)
    assert made.arrival[0] == 0
    assert len(made) / made.arrival[-1] == pytest.approx(25, rel=0.05)
    assert np.bincount(made.adapter) / len(made) == pytest.approx([0.6, 0.2, 0.2], abs=0.02)
    for number, (prompt, output, rank) in enumerate([(500, 80, 16), (2000, 20, 16), (100, 300, 0)]):
        its = made.adapter == number
        assert made.prompt[its].mean() == pytest.approx(prompt, rel=0.06)
        assert made.output[its].mean() == pytest.approx(output, rel=0.06)
        assert set(made.rank[its]) == {rank}
    base = [request for request in made.requests() if not request.adapter]
    assert {request.tenant for request in base} == {""}
    assert len(base) == np.count_nonzero(made.adapter == 2)


def test_adapters_without_a_request_in_an_hour_are_not_in_it():
    """`florin plan` divides by their requests."""
    hours = Stated("W1", 0.02, 200, 400.0, 60.0).made(40_000, seed=1)
    uses = uses_of(hours)
    assert 0 < len(uses) < len(set(hours.adapter))
    assert all(use.requests and use.prompt_tokens for use in uses)
