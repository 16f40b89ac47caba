"""What all workers have heard of the placement. It lags behind the claims, as the change feed does."""

from __future__ import annotations

import math
from collections.abc import Callable

from adapters.model import Placement, SlotState
from adapters.placement.residency import Residency
from gateway.planning.simulator.event_queue import Events
from gateway.planning.simulator.simulated_request import Tier

DELAY = 0.002
"""Seconds from a change to every worker's knowing it."""
_STATES = {Tier.GPU: SlotState.RESIDENT, Tier.CPU: SlotState.CACHED}


class Mirror:
    """Tells `residency` of each change of the placement, and then `on_change`."""

    def __init__(self, events: Events) -> None:
        self.residency = Residency(lambda: events.now, window=math.inf)
        self.on_change: Callable[[str], None] = lambda _version: None
        self._events = events

    def __repr__(self) -> str:
        return f"<Mirror of {self.residency}>"

    def changed(self, engine: str, version: str, placement: Placement | None) -> None:
        self._events.at(self._events.now + DELAY, self._hear, (engine, version, placement))

    def seen(self, engine: str, version: str, tier: Tier) -> None:
        """An engine has moved an adapter: known at once, which flatters gateways that guess it."""
        state = _STATES.get(tier)
        self._hear((engine, version, Placement(engine, version, state) if state else None))

    def _hear(self, event: tuple[str, str, Placement | None]) -> None:
        self.residency.place(*event)
        self.on_change(event[1])
