"""The policies by name, as in the setting `FLORIN_SCHEDULING_POLICY`. Each file has one, of one signature
(`Policy`). `cost` is the default; the others are baselines to compare it with."""

from __future__ import annotations

from collections.abc import Callable

from adapters.placement.scheduling.policies import cost
from adapters.placement.scheduling.policies.activity import activity
from adapters.placement.scheduling.policies.consistent_hash import bounded_hash, consistent_hash
from adapters.placement.scheduling.policies.least_loaded import least_loaded
from adapters.placement.scheduling.policies.power_of_two import PowerOfTwo
from adapters.placement.scheduling.policies.random_choice import RandomChoice
from adapters.placement.scheduling.policies.residency import residency
from adapters.placement.scheduling.scheduler import Scheduler

POLICIES: dict[str, Callable[[], Scheduler]] = {
    "cost": lambda: Scheduler(cost.cost, cost.pick),
    "random": lambda: Scheduler(RandomChoice()),
    "power_of_two": lambda: Scheduler(PowerOfTwo()),
    "least_loaded": lambda: Scheduler(least_loaded),
    "consistent_hash": lambda: Scheduler(consistent_hash),
    "bounded_hash": lambda: Scheduler(bounded_hash),
    "residency": lambda: Scheduler(residency),
    "activity": lambda: Scheduler(activity),
}
"""Each creates a new scheduler, since some policies remember what they saw."""
