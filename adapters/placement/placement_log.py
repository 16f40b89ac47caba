"""The latest changes of the placement, as this worker heard of them: what a live view of the fleet tells.

In memory only, and bounded: it starts empty with the worker. The change feed is the same for all workers, so
what they tell differs only in how far back it goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from adapters.model import Placement, SlotState, load
from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from adapters.store.protocol.registry import Event

KEPT: Final = 500
_SAME_CLAIM: Final = 200_000
"""Microseconds within which the events of one claim arrive: a version leaves a slot, and another takes it."""

Kind = Literal[
    "loading", "loaded", "not_loaded", "activated", "evicted", "unloaded", "leaving", "kept", "lost"
]
"""activated: from CPU memory into a slot. evicted: out of a slot, still in CPU memory. leaving: it takes no
new requests, so that another can have its slot; kept: it does again. lost: with its engine's process."""
_GONE: Final = frozenset({"evicted", "unloaded"})
_TAKEN: Final = frozenset({"loading", "activated"})


@dataclass(frozen=True, slots=True)
class PlacementChange:
    changed_at: int
    """Unix microseconds, UTC."""
    engine: str
    version: str
    """`acme/support@v3`; its name on engines if the registry no longer has it."""
    kind: Kind
    seconds: float | None = None
    """How long it was loading, once that has ended."""
    room_for: str = ""
    """The version that got its slot, as `version`."""


class PlacementLog:
    """A view that must hear of each event before `residency` does."""

    def __init__(self, residency: Residency, catalog: Catalog, now: Callable[[], int]) -> None:
        """`now`: Unix microseconds."""
        self._residency = residency
        self._catalog = catalog
        self._now = now
        # Mutable, with the newest last; and when the loads in progress were claimed.
        self._changes: deque[PlacementChange] = deque(maxlen=KEPT)
        self._loading: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<PlacementLog of {len(self._changes)}>"

    def latest(self) -> list[PlacementChange]:
        """Newest first."""
        return list(reversed(self._changes))

    def load(self, _documents: dict[str, dict[str, str]]) -> None:
        """A snapshot does not tell when what it holds came about."""
        self._loading.clear()

    def apply(self, event: Event) -> None:
        if event.kind != "placement":
            return
        engine, _, name = event.id.partition("/")
        slot = self._residency.held(engine).get(name)
        after = load(Placement, event.data).state if event.data else None
        kind = kind_of(slot.placement.state if slot else None, after)
        if kind is None:
            return
        now = self._now()
        known = self._catalog.by_engine_name.get(name)
        version = known.id if known else name
        begun = self._loading.pop(event.id, None)
        if kind == "loading":
            self._loading[event.id] = now
        seconds = None if begun is None or kind == "loading" else max(0, now - begun) / 1e6
        if kind in _TAKEN:
            self._explain(engine, version, now)
        self._changes.append(PlacementChange(now, engine, version, kind, seconds))

    def _explain(self, engine: str, version: str, now: int) -> None:
        """The slots that were given up just before were given up for this version."""
        for place in range(len(self._changes) - 1, -1, -1):
            change = self._changes[place]
            if change.engine != engine or change.kind not in _GONE or now - change.changed_at > _SAME_CLAIM:
                return
            if not change.room_for:
                self._changes[place] = replace(change, room_for=version)


def kind_of(before: SlotState | None, after: SlotState | None) -> Kind | None:
    """None: nothing that anyone wants to know."""
    if before is after:
        return None
    match before, after:
        case _, SlotState.LOADING:
            return "loading"
        case SlotState.LOADING, None:
            return "not_loaded"
        case _, None:
            return "unloaded"
        case _, SlotState.LOST:
            return "lost"
        case _, SlotState.LEAVING:
            return "leaving"
        case _, SlotState.CACHED:
            return "evicted"
        case SlotState.LEAVING, SlotState.RESIDENT:
            return "kept"
        case SlotState.CACHED, SlotState.RESIDENT:
            return "activated"
    return "loaded"
