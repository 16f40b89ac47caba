"""The copy of Dynamo's placement must decide as Dynamo does: its own experiment gives its own figures."""

from collections import Counter

import numpy as np
import pytest

from gateway.planning.simulator.workloads import generate
from loadtests.sim.dynamo.controller import Controller, replica_counts
from loadtests.sim.dynamo.policy import WINDOW, Load
from loadtests.sim.dynamo.workloads import DYNAMO

ORDERS = {"a": "2130", "b": "2301", "c": "0123", "d": "3021"}
"""What Dynamo's hash of these names and engines gives."""
TICKS = 40
ALTERNATING = [
    {"a": 30, "b": 1, "c": 5, "d": 5} if tick % 2 == 0 else {"a": 1, "b": 30, "c": 5, "d": 5}
    for tick in range(TICKS)
]


@pytest.mark.parametrize(
    ("algorithm", "cooldown", "churn", "targets", "overflow"),
    [
        ("hrw", 0, 241, 7.0, 0),
        ("hrw", 3, 10, 9.925, 0),
        ("mcf", 0, 241, 7.0, 0),
        ("mcf", 3, 8, 7.975, 40),
    ],
)
def test_its_experiment_with_two_hot_adapters_in_turn(algorithm, cooldown, churn, targets, overflow):
    """`optimization_findings.md`, hypothesis 2."""
    controller = Controller(algorithm, dict.fromkeys("0123", 2), ORDERS.__getitem__, cooldown=cooldown)
    total = 0
    for loads in ALTERNATING:
        controller.update(loads, {})
        total += sum(map(len, controller.targets.values()))
    assert (controller.changes, total / TICKS, controller.overflowed) == (churn, targets, overflow)


def test_replicas_fill_the_slots_in_proportion_to_load():
    assert replica_counts({"a": 1, "b": 1, "c": 1}, 4, 4) == {"a": 2, "b": 1, "c": 1}
    assert replica_counts({"a": 3, "b": 2, "c": 1}, 2, 2) == {"a": 1, "b": 1}


def test_without_a_slot_an_adapter_stays_where_it_is_warm():
    controller = Controller("hrw", {"0": 1, "1": 1}, lambda _: "01")
    for loads in {"a": 9, "b": 8, "c": 1}, {"a": 9, "b": 8, "c": 1}:
        controller.update(loads, {"c": {"1"}})
        assert controller.targets["c"] == ["1"]
    controller.update({}, {"c": {"1"}})
    assert (controller.targets, controller.active) == ({"c": ["0"]}, set())


def test_an_adapter_has_load_as_long_as_it_has_arrivals_in_the_window():
    load = Load()
    assert load.after(Counter(a=4)) == {"a": 4}
    seen = [load.after(Counter()).get("a", 0) for _ in range(WINDOW + 4)]
    assert seen[: WINDOW - 1] == [4] * (WINDOW - 1)
    assert seen[WINDOW - 1 : WINDOW + 3] == [2, 1, 1, 0]


@pytest.mark.parametrize(("name", "busiest", "calmest"), [("diurnal", 0.25, 0.0), ("flash", 0.26, 0.1)])
def test_the_rate_follows_its_course(name, busiest, calmest):
    arrival = generate(DYNAMO[f"dynamo-{name}"], 50, 400, seed=1).arrival
    rates = np.histogram(arrival, bins=40, range=(0, 400))[0]
    assert rates[round(40 * busiest)] > 3 * rates[round(40 * calmest)]
