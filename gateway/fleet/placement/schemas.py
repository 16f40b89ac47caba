"""Placement: which versions are on which engines, how that changed, and where requests go."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.fleet.engines.schemas.engines import Hang, Health
from gateway.schemas.base import Answer

ChangeKind = Literal[
    "loading", "loaded", "not_loaded", "activated", "evicted", "unloaded", "leaving", "kept", "lost"
]


class PlacedVersion(Answer):
    """A version on an engine."""

    version: str = Field(description="`… (removed)` if the registry no longer has it.")
    state: Literal["loading", "resident", "cached", "leaving", "lost"] = Field(
        description="`cached`: in CPU memory; all others hold a slot. `leaving`: it takes no new requests, "
        "so that another version can have the slot. `lost`: it is loaded again once its engine recovers."
    )
    in_flight: int = Field(description="This worker's requests now, or those that all workers last reported.")
    idle_seconds: float | None = Field(description="Since its last request; null: unknown.")
    pinned: bool


class EnginePlacement(Answer):
    """The versions on an engine, most recently used first."""

    engine: str
    gpu_type: str
    health: Health
    hang: Hang | None
    slots: int
    cpu_slots: int
    placements: tuple[PlacedVersion, ...]


class PlacementChange(Answer):
    """A load, an eviction, or another change of the placement."""

    changed_at: int = Field(description="Unix microseconds, UTC.")
    engine: str
    version: str
    kind: ChangeKind = Field(
        description="`activated`: from CPU memory into a slot. `evicted`: out of its slot, still in CPU "
        "memory. `leaving`: it takes no new requests, so that another can have its slot; `kept`: it does "
        "again. `lost`: with its engine's process."
    )
    seconds: float | None = Field(None, description="How long the load took.")
    why: str | None = Field(
        description="For whom a slot was given up, or the planner's reason; null: a request or an operator "
        "caused it."
    )


class PlannerMove(Answer):
    """A move that the planner has made."""

    moved_at: int = Field(description="Unix microseconds, UTC.")
    kind: str = Field(description="`replicate`, `prefetch` or `drop`.")
    version: str
    engine: str
    why: str


class Candidate(Answer):
    """An engine, as the scheduler sees it for one request."""

    engine: str
    health: Health
    eligible: bool
    action: str = Field(
        description="`serve`: it holds the version; `activate`: it has it in CPU memory; `wait`: it is "
        "loading it; `load`: it would have to."
    )
    cost_ms: float | None = Field(description="Expected delay; the lowest wins. null: not eligible.")
    terms: dict[str, float] = Field(description="What the cost consists of, in milliseconds.")
    reason: str


class Choice(Answer):
    """Where a request would go now."""

    action: str = Field(description="As of the candidate; `none`: no engine can serve it.")
    engine: str | None
    reason: str
    candidates: tuple[Candidate, ...]


class Explanation(Answer):
    adapter: str
    version: str
    decision: Choice
    moves: tuple[PlannerMove, ...] = Field(
        description="What the planner has lately moved of the adapter, newest first."
    )


class Decision(Answer):
    """The scheduling decision for one attempt of a request."""

    request_id: str
    attempt: int
    decided_at: int = Field(description="Unix microseconds, UTC.")
    adapter: str
    engine: str = Field(description="Where the attempt was sent.")
    search_ms: float = Field(0.0, description="How long finding the engine took; left out below 1 ms.")
    queue_ms: float = Field(0.0, description="Part of it that was spent waiting for the request's turn.")
    load_ms: float = Field(0.0, description="Part of it that was spent waiting for an adapter load.")
    picked: str | None = Field(None, description="The engine that was picked; left out if none had to be.")
    action: str | None = Field(None, description="See the candidates of an explanation.")
    cost_ms: float = 0.0
    fleet: int = Field(0, description="Engines of the fleet.")
    considered: tuple[tuple[str, str, float], ...] = Field(
        (), description="The cheapest engines: name, action, cost in milliseconds."
    )
    expected_cached_tokens: int = Field(
        0, description="Prompt tokens that the picked engine was expected to have in its prefix cache."
    )

    @property
    def others(self) -> int:
        """Engines of the fleet that could not serve it, or not for less."""
        return max(0, self.fleet - len(self.considered))


class Decisions(Answer):
    request_id: str
    data: tuple[Decision, ...] = Field(description="One for each attempt.")
