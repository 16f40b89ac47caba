"""What is simulated: a scheduling policy, and what the gateway around it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adapters.placement.scheduling.scheduler import Scheduler


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
    affinity: bool = True
    """What engines have seen of a prompt counts."""
    probes: int = 0
    """Probe prompts after each load."""
    unlimited: bool = False
    """No limit to slots, and loads take no time."""
