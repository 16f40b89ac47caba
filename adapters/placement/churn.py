"""How often versions change places, and how much of that is undone soon: work that gained nothing."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

from adapters.model import SlotState

SOON: Final = 60.0
"""Seconds within which a change counts as undone."""
WINDOW: Final = 600.0
"""Seconds of which a gateway's figures tell."""
_IN_SLOT = frozenset({SlotState.RESIDENT, SlotState.LEAVING})


@dataclass(frozen=True, slots=True)
class Changes:
    loads: int
    evictions: int
    undone: int

    @property
    def share_undone(self) -> float:
        """What was undone may have been done before the window."""
        return min(1.0, self.undone / max(1, self.loads + self.evictions))


@dataclass(slots=True)
class Churn:
    """Loads and evictions of the last `window` seconds. Mutable: call `changed` with each change of the
    residency.

    A load is undone when its version soon leaves that slot; an eviction, when its version soon has a slot
    again, on whichever engine. What is dropped counts as evicted; what an engine loses with its process does
    not.
    """

    window: float = math.inf
    _changes: deque[tuple[float, Literal["load", "eviction", "undone"]]] = field(default_factory=deque)
    _recent: dict[tuple[str, str], float] = field(default_factory=dict)
    """(version, engine) of a load, or (version, "") of an eviction → when; the earliest first."""

    def changed(
        self, engine: str, version: str, before: SlotState | None, after: SlotState | None, now: float
    ) -> None:
        """A version's state on an engine has changed at that monotonic time."""
        if before not in _IN_SLOT and after in _IN_SLOT:
            self._undo(version, "", now)
            if before is SlotState.LOADING:
                self._changes.append((now, "load"))
                self._recent[version, engine] = now
        elif before in _IN_SLOT and after in {SlotState.CACHED, None}:
            self._undo(version, engine, now)
            self._changes.append((now, "eviction"))
            self._recent.pop((version, ""), None)
            self._recent[version, ""] = now

    def _undo(self, version: str, engine: str, now: float) -> None:
        while self._recent and now - next(iter(self._recent.values())) > SOON:
            del self._recent[next(iter(self._recent))]
        if self._recent.pop((version, engine), None) is not None:
            self._changes.append((now, "undone"))
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._changes and now - self._changes[0][0] > self.window:
            self._changes.popleft()

    def lately(self, now: float) -> Changes:
        self._forget(now)
        kinds = [kind for _, kind in self._changes]
        return Changes(kinds.count("load"), kinds.count("eviction"), kinds.count("undone"))
