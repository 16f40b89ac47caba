"""Which engines hold which versions, as last heard from the feed.

This view may be briefly out of date, and that is safe: an engine that does not hold the version answers "no
such model" before the first byte, and the request is retried elsewhere.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from adapters.model import Placement, SlotState, load
from adapters.placement.churn import WINDOW, Changes, Churn
from adapters.store.protocol.registry import Event

_RESIDENT = SlotState.RESIDENT
_MAX_VERIFIED = 50_000
"""Most verified loads that are remembered, over all engines: about 15 MB."""


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


def _ignored(_engine: str, _version: str, _before: SlotState | None, _after: SlotState | None) -> None:
    """Nobody wants to know."""


class Held(dict[str, Slot]):
    """The versions placed on one engine. Mutable: only `place` and `clear` change it."""

    loading = 0
    """How many of them are being loaded."""

    def place(self, version: str, slot: Slot | None) -> None:
        before = self.pop(version, None)
        if before is not None and before.placement.state is SlotState.LOADING:
            self.loading -= 1
        if slot is not None:
            self[version] = slot
            self.loading += slot.placement.state is SlotState.LOADING

    def clear(self) -> None:
        super().clear()
        self.loading = 0


class Residency:
    """What is placed on every engine, as this process last heard from the feed.

    Only the `Follower` writes to this view (in the simulator, `PlacementRules`); routing, the loader and the
    reconciler read it on the same event loop. It may lag behind the store, so readers
    treat it as a hint and the store's claim as the decision.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, window: float = WINDOW) -> None:
        """`window`: seconds of which `churn` tells."""
        self._clock = clock
        self._churn = Churn(window)
        self.on_change: Callable[[str, str, SlotState | None, SlotState | None], None] = _ignored
        """Called with each change that is heard, but not for a whole snapshot: the engine, the version, its
        state before and after."""
        self._by_version: dict[str, dict[str, Slot]] = {}
        self._by_engine: dict[str, Held] = {}
        self._verified: OrderedDict[str, str] = OrderedDict()
        """Placement id → `Placement.verified` of the last confirmed load, also of versions unloaded since.
        The most recent last."""

    def __repr__(self) -> str:
        return f"<Residency { ({e: len(s) for e, s in self._by_engine.items()}) }>"

    # -- called by the follower

    def load(self, documents: dict[str, dict[str, str]]) -> None:
        self._by_version.clear()
        for slots in self._by_engine.values():
            slots.clear()  # in place: `held` is live
        for key, data in documents.get("placement", {}).items():
            self._read(key, data)

    def apply(self, event: Event) -> None:
        if event.kind == "placement":
            self._read(event.id, event.data)

    def _read(self, key: str, data: str | None) -> None:
        engine, _, version = key.partition("/")
        self.place(engine, version, load(Placement, data) if data else None)

    def place(self, engine: str, version: str, placement: Placement | None) -> None:
        """None: the version is no longer placed on the engine."""
        before = self._by_version.get(version, {}).get(engine)
        was = before.placement.state if before else None
        state = placement.state if placement else None
        self._churn.changed(engine, version, was, state, self._clock())
        self.on_change(engine, version, was, state)
        if placement is None:
            self._by_version.get(version, {}).pop(engine, None)
            self._by_engine.setdefault(engine, Held()).place(version, None)
            if not self._by_version.get(version):
                self._by_version.pop(version, None)
            return
        if placement.verified:
            self._verified[placement.id] = placement.verified
            self._verified.move_to_end(placement.id)
            if len(self._verified) > _MAX_VERIFIED:
                self._verified.popitem(last=False)
        slot = Slot(placement, self._clock())
        self._by_version.setdefault(version, {})[engine] = slot
        self._by_engine.setdefault(engine, Held()).place(version, slot)

    # -- called by those who watch

    def churn(self) -> Changes:
        """Loads and evictions of late, and how many of them were undone soon."""
        return self._churn.lately(self._clock())

    # -- called by the verifier

    def verified(self, engine: str, version: str) -> str:
        """`Placement.verified` of the version's last confirmed load there that this worker heard of."""
        return self._verified.get(f"{engine}/{version}", "")

    # -- called by requests

    def holders(self, version: str) -> list[str]:
        """Engines on which the version is resident and takes new requests."""
        slots = self._by_version.get(version)
        if not slots:
            return []
        return [
            engine
            for engine, slot in slots.items()
            if slot.placement.state is _RESIDENT or slot.state(self._clock()) is _RESIDENT
        ]

    def holds(self, engine: str, version: str) -> bool:
        slot = self._by_version.get(version, {}).get(engine)
        return slot is not None and slot.state(self._clock()) is SlotState.RESIDENT

    def places(self, version: str) -> Iterable[str]:
        """Engines that the version is assigned to, in whatever state."""
        return self._by_version.get(version, ())

    def cached(self, version: str) -> list[str]:
        """Engines that have the version in CPU memory, without a slot."""
        return [e for e, state in self.where(version).items() if state is SlotState.CACHED]

    def loading(self, version: str) -> list[str]:
        """Engines that are loading the version."""
        return [e for e, state in self.where(version).items() if state is SlotState.LOADING]

    def held(self, engine: str) -> Held:
        """Versions placed on the engine. Live: it changes with the placement."""
        return self._by_engine.setdefault(engine, Held())

    def engines(self) -> set[str]:
        """Engines on which at least one version is placed."""
        return {engine for engine, slots in self._by_engine.items() if slots}

    def placed(self, engine: str) -> dict[str, SlotState]:
        """Versions placed on the engine, with their states. The engine should list all but loading and lost
        ones."""
        now = self._clock()
        return {v: s.state(now) for v, s in self._by_engine.get(engine, {}).items()}

    def slots(self, engine: str) -> dict[str, SlotState]:
        """Versions that hold a slot of the engine, with their states: all that are placed but the cached."""
        return {v: s for v, s in self.placed(engine).items() if s is not SlotState.CACHED}

    def where(self, version: str) -> dict[str, SlotState]:
        """Engines on which the version is placed, with its state on each."""
        now = self._clock()
        return {e: s.state(now) for e, s in self._by_version.get(version, {}).items()}
