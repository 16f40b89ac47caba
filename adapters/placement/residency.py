"""Which engines hold which versions, as last heard from the feed.

This view may be briefly out of date, and that is safe: an engine that does not hold the version answers "no
such model" before the first byte, and the request is retried elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from adapters.model import Placement, SlotState, load
from adapters.store.protocol import Event


@dataclass(frozen=True, slots=True)
class Slot:
    placement: Placement
    heard: float
    """When the state lapses, on this process's monotonic clock."""

    def state(self, now: float) -> SlotState:
        """The state at `now`. `leaving` lapses once the request that wanted the slot has gone."""
        p = self.placement
        if p.state is SlotState.LEAVING and now - self.heard > p.for_ms / 1000:
            return SlotState.RESIDENT
        return p.state


class Residency:
    """The slots of every engine, as this process last heard from the feed.

    Only the `Follower` writes to this view; routing, the loader and the reconciler read it on the same event
    loop. It may lag behind the store, so readers treat it as a hint and the store's claim as the decision.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_version: dict[str, dict[str, Slot]] = {}
        self._by_engine: dict[str, dict[str, Slot]] = {}

    def __repr__(self) -> str:
        return f"<Residency { ({e: len(s) for e, s in self._by_engine.items()}) }>"

    # -- called by the follower

    def load(self, documents: dict[str, dict[str, str]]) -> None:
        self._by_version, self._by_engine = {}, {}
        for key, data in documents.get("placement", {}).items():
            self._set(key, data)

    def apply(self, event: Event) -> None:
        if event.kind == "placement":
            self._set(event.id, event.data)

    def _set(self, key: str, data: str | None) -> None:
        engine, _, version = key.partition("/")
        if data is None:
            self._by_version.get(version, {}).pop(engine, None)
            self._by_engine.get(engine, {}).pop(version, None)
            if not self._by_version.get(version):
                self._by_version.pop(version, None)
            return
        slot = Slot(load(Placement, data), self._clock())
        self._by_version.setdefault(version, {})[engine] = slot
        self._by_engine.setdefault(engine, {})[version] = slot

    # -- called by requests

    def holders(self, version: str) -> list[str]:
        """Engines on which the version is resident and takes new requests."""
        slots = self._by_version.get(version)
        if not slots:
            return []
        now = self._clock()
        return [e for e, s in slots.items() if s.state(now) is SlotState.RESIDENT]

    def holds(self, engine: str, version: str) -> bool:
        slot = self._by_engine.get(engine, {}).get(version)
        return slot is not None and slot.state(self._clock()) is SlotState.RESIDENT

    def engines(self) -> set[str]:
        """Engines with at least one assigned version."""
        return {engine for engine, slots in self._by_engine.items() if slots}

    def slots(self, engine: str) -> dict[str, SlotState]:
        """Versions assigned to the engine, with their states."""
        now = self._clock()
        return {v: s.state(now) for v, s in self._by_engine.get(engine, {}).items()}

    def where(self, version: str) -> dict[str, SlotState]:
        """Engines that the version is assigned to, with its state on each."""
        now = self._clock()
        return {e: s.state(now) for e, s in self._by_version.get(version, {}).items()}
