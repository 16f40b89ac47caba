"""How many engines a load asks for, and that the answer settles."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.placement.scaling import GROW, SHRINK, FleetLoad, engines_wanted

IDLE = FleetLoad(engines=4, capacity=256, slots=32, requests=0, adapters=0, delay=0.0)
FLEETS = st.dictionaries(st.sampled_from(["A", "B", "C"]), st.integers(1, 200), min_size=1)
DEMANDS = st.floats(0, 500)


@pytest.mark.parametrize(
    ("change", "demand"),
    [
        ({}, 0),
        ({"requests": 128}, 2),
        ({"requests": 512}, 8),
        ({"adapters": 24}, 3),
        ({"adapters": 24, "requests": 10, "delay": 0.1}, 3),
        ({"delay": 1.0}, 2),
        ({"delay": 4.0, "requests": 512, "adapters": 64}, 8),
        ({"engines": 0, "capacity": 0, "slots": 0, "requests": 9}, 0),
        ({"slots": 0, "requests": 64}, 1),
    ],
)
def test_demand_is_what_the_scarcest_resource_asks_for(change, demand):
    assert replace(IDLE, **change).demand(slo_ttft=2.0) == pytest.approx(demand)


@pytest.mark.parametrize(
    ("there", "demand", "peak", "wanted"),
    [
        ({"H100": 4}, 3.0, 3.0, {"H100": 4}),  # 75 % each
        ({"H100": 4}, 3.3, 3.3, {"H100": 5}),
        ({"H100": 4}, 0.5, 3.0, {"H100": 4}),  # busy a moment ago
        ({"H100": 4}, 0.5, 1.7, {"H100": 3}),
        ({"H100": 4}, 0.0, 0.0, {"H100": 1}),
        ({"H100": 4}, 0.0, math.inf, {"H100": 4}),  # nobody knows yet
        ({"H100": 4}, 3.3, math.inf, {"H100": 5}),
        ({"H100": 2, "L4": 4}, 9.0, 9.0, {"H100": 4, "L4": 8}),
        ({}, 5.0, 5.0, {}),
    ],
)
def test_growth_follows_the_demand_and_shrinking_the_peak(there, demand, peak, wanted):
    assert engines_wanted(there, demand, peak) == wanted


@given(FLEETS, DEMANDS)
def test_a_constant_demand_is_settled_in_one_step(there, demand):
    first = engines_wanted(there, demand, demand)
    assert engines_wanted(first, demand, demand) == first


@given(FLEETS, DEMANDS, st.lists(st.floats(0.9, 1.1), min_size=1, max_size=20))
def test_a_demand_that_wavers_by_a_tenth_makes_the_fleet_grow_but_not_flap(there, demand, wavers):
    highest = 1.1 * demand
    fleet = engines_wanted(there, highest, highest)
    for waver in wavers:
        assert engines_wanted(fleet, demand * waver, highest) == fleet


@given(FLEETS, DEMANDS, DEMANDS)
def test_what_is_wanted_serves_the_demand_and_is_never_far_more(there, demand, more):
    peak = demand + more
    wanted = engines_wanted(there, demand, peak)
    assert wanted.keys() == there.keys()
    assert min(wanted.values()) >= 1
    assert sum(wanted.values()) * GROW >= demand * (1 - 1e-9)
    for gpu_type, count in wanted.items():
        assert count <= max(there[gpu_type], math.ceil(demand / GROW), 1)
    assert sum(wanted.values()) <= peak / SHRINK + sum(there.values()) * (demand > 0) + 2 * len(there)


@given(FLEETS, DEMANDS, DEMANDS)
def test_more_demand_never_wants_fewer(there, one, other):
    low, high = sorted((one, other))
    fewer, more = engines_wanted(there, low, low), engines_wanted(there, high, high)
    assert all(fewer[gpu_type] <= more[gpu_type] for gpu_type in there)
