"""What can be compared: a policy with modifiers, `activity+direct+cancel`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from adapters.placement.scheduling.policies import POLICIES
from adapters.placement.scheduling.scheduler import Scheduler
from loadtests.sim.landed import landed


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    scheduler: Callable[[], Scheduler]
    claims: bool = True
    """Florin's admission: a slot is claimed before a request is sent, so that an engine never has more
    adapters in flight than slots. Otherwise requests go straight to the engine, as with gateways that only
    route; these know at once what each engine holds."""
    cancel: bool = True
    """Give requests up at their deadline."""
    cpu_tier: bool = True
    """What loses its slot stays in CPU memory."""
    replicas: bool = True
    planner: bool = False
    """The leader plans where adapters should be."""
    affinity: bool = True
    """The engine that saw the beginning of a prompt last is preferred."""
    probes: int = 0
    """Probe prompts after each load."""
    unlimited: bool = False
    """No limit to slots, and loads take no time."""


PROBES = 8
_LANDED = Contestant("landed", lambda: Scheduler(landed), cpu_tier=False, replicas=False, cancel=False)
_SPECIAL = {
    "landed": replace(_LANDED, probes=PROBES),
    "landed-unprobed": _LANDED,
    "bound": Contestant("bound", POLICIES["cost"], claims=False, unlimited=True),
}
_MODIFIERS: dict[str, dict[str, Any]] = {
    "direct": {"claims": False, "cancel": False},
    "cancel": {"cancel": True},
    "wait": {"cancel": False},
    "probes": {"probes": PROBES},
    "planner": {"planner": True},
    "no-affinity": {"affinity": False},
}
NAMES = [*POLICIES, *_SPECIAL]


def contestant(text: str) -> Contestant:
    """Raises ValueError with the names that exist."""
    name, *modifiers = text.split("+")
    if name in _SPECIAL:
        made = _SPECIAL[name]
    elif name in POLICIES:
        made = Contestant(name, POLICIES[name])
    else:
        raise ValueError(f"no policy {name!r}; there are {', '.join(NAMES)}")
    for modifier in modifiers:
        if modifier not in _MODIFIERS:
            raise ValueError(f"no modifier {modifier!r}; there are {', '.join(_MODIFIERS)}")
        made = replace(made, **_MODIFIERS[modifier])
    return replace(made, name=text)
