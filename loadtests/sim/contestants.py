"""What can be compared: a policy with modifiers, `activity+direct+cancel`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from adapters.placement.scheduling.policies import POLICIES
from adapters.placement.scheduling.scheduler import Scheduler
from gateway.planning.simulator.contestant import Contestant
from loadtests.sim.dynamo.controller import ALGORITHMS, Algorithm
from loadtests.sim.dynamo.policy import DynamoPolicy
from loadtests.sim.landed import landed

PROBES = 8
_LANDED = Contestant("landed", lambda: Scheduler(landed), cpu_tier=False, replicas=False, cancel=False)


def _dynamo(algorithm: Algorithm) -> Contestant:
    def scheduler() -> Scheduler:
        return Scheduler(DynamoPolicy(algorithm))

    return Contestant(f"dynamo-{algorithm}", scheduler, claims=False, cancel=False)


_SPECIAL = {
    "landed": replace(_LANDED, probes=PROBES),
    "landed-unprobed": _LANDED,
    "bound": Contestant("bound", POLICIES["cost"], claims=False, unlimited=True),
    **{f"dynamo-{each}": _dynamo(each) for each in ALGORITHMS},
}
_MODIFIERS: dict[str, dict[str, Any]] = {
    "direct": {"claims": False, "cancel": False},
    "cancel": {"cancel": True},
    "wait": {"cancel": False},
    "probes": {"probes": PROBES},
    "no-affinity": {"affinity": False},
}
NAMES = [*POLICIES, *_SPECIAL]


def contestant(text: str) -> Contestant:
    """Raises ValueError with the names that exist."""
    name, *modifiers = text.split("+")
    if name in _SPECIAL:
        chosen = _SPECIAL[name]
    elif name in POLICIES:
        chosen = Contestant(name, POLICIES[name])
    else:
        raise ValueError(f"no policy {name!r}; there are {', '.join(NAMES)}")
    for modifier in modifiers:
        if modifier not in _MODIFIERS:
            raise ValueError(f"no modifier {modifier!r}; there are {', '.join(_MODIFIERS)}")
        chosen = replace(chosen, **_MODIFIERS[modifier])
    return replace(chosen, name=text)
