"""How many engines a fleet needs, for an autoscaler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

GROW, SHRINK = 0.8, 0.6
"""The load per engine above which more are wanted, and below which fewer are. The gap prevents flapping."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """One base model's fleet at one moment, all workers together as far as known."""

    engines: int
    """Those that take requests and answer."""
    capacity: float
    """Requests in flight that these serve well."""
    slots: int
    """GPU slots of these engines."""
    requests: int
    """On engines, and waiting for one."""
    adapters: int
    """Slots in use by requests in flight, and distinct adapters that wait for a slot or a load."""
    delay: float
    """Expected seconds until another request's first token, on average over these engines."""

    def demand(self, slo_ttft: float) -> float:
        """Fully used engines, of this fleet's mean size, that the load is worth: by requests, by slots, or by
        delay, whichever asks for most."""
        if not self.engines:
            return 0.0
        by_slots = self.adapters / self.slots if self.slots else 0.0
        return self.engines * max(self.requests / self.capacity, by_slots, self.delay / slo_ttft)


def engines_wanted(
    engines: Mapping[str, int], demand: float, peak: float, *, at_least: int = 1
) -> dict[str, int]:
    """GPU type → engines wanted, `at_least` so many. The mix of GPU types stays as it is.

    `engines`: GPU type → how many there are now; `peak`: the highest demand lately, inf if that is unknown.
    Growth follows the demand, shrinking the peak. If nothing changes but the number of engines, the answer
    is reached in one step.
    """
    total = sum(engines.values())
    desired = {}
    for gpu_type, count in engines.items():
        share = count / total
        needed = math.ceil(share * demand / GROW)
        most = share * max(demand, peak) / SHRINK
        desired[gpu_type] = max(at_least, needed, count if count <= most else math.ceil(most))
    return desired
