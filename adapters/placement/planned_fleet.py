"""What the planner sees of a fleet, and what it proposes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from adapters.model import Release, SlotState

Kind = Literal["replicate", "drop", "prefetch"]


@dataclass(frozen=True, slots=True)
class PlacedVersion:
    """One placement on an engine."""

    state: SlotState
    leased: bool = False
    """Requests are in flight, so it can be neither evicted nor dropped."""
    idle: float = math.inf
    """Seconds since its last use."""


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    name: str
    slots: int
    max_rank: int
    domain: str
    """Failure domain."""
    labels: Mapping[str, str] = field(default_factory=dict)
    serves: bool = True
    """It takes requests."""
    open: bool = True
    """It takes loads, too: it is neither cordoned nor suspect, and not in slow start."""
    only: str | None = None
    """The only version that it can hold, which is merged into its weights. Empty: it can be given none.
    None: it loads any."""
    trial: bool = False
    """It is on trial: it gets what the others serve."""
    requests: int = 0
    """Running and waiting there."""
    load_ms: float = 100.0
    """How long a load stalls it."""
    since_load: float = math.inf
    """Seconds since its last load began."""
    weight: float = 1.0
    """Relative cost per token; the cheaper is preferred."""
    held: Mapping[str, PlacedVersion] = field(default_factory=dict)
    """Versions placed there."""
    release: Release = (0, 0)
    """Its release of vLLM."""


@dataclass(frozen=True, slots=True)
class PlannedVersion:
    name: str
    """Its name on engines."""
    rank: int = 8
    requires: Mapping[str, str] = field(default_factory=dict)
    """Labels that its engines must have."""
    min_replicas: int = 0
    max_replicas: int | None = None
    pinned: bool = False
    release: Release = (0, 0)
    """The release of vLLM from which on engines apply it."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """One fleet at one moment."""

    engines: tuple[PlannedEngine, ...]
    versions: tuple[PlannedVersion, ...]
    """Those that callers may reach and that are placed, pinned, or have a minimum. Others that are placed are
    left to eviction."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    moves: int = 8
    """In one plan."""
    searches: int = 64
    """For engines to load on, in one plan: while a large fleet is full, most find none."""
    stalled: float = 0.05
    """Most of an engine's time that loads of the planner may stall it."""
    idle: float = 60.0
    """Seconds after which the only replica of an idle version may be evicted for another's replica."""


@dataclass(frozen=True, slots=True)
class Move:
    kind: Kind
    version: str
    engine: str
    why: str
