"""Chooses the engine for a request: pure functions over frozen data.

Costs are milliseconds of expected delay, measured on vLLM 0.8.5 with Llama-3.1-8B on one H100. A newer engine
is faster, but the choice depends only on how the terms compare. The dominant term is one more distinct
adapter on an engine: with more adapters in flight than slots, every request there stalls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

PER_REQUEST = 18.0
"""Per request already running or waiting there."""
NEW_ADAPTER = 480.0
"""For one more distinct adapter in flight, times the fraction of the engine's slots then in use."""
LOAD = 70.0
"""Load from disk to memory, rank 8. It stalls every request on the engine, hence the factor below."""
LOAD_STALL = 0.35
"""Fraction of a load's time charged per request in flight."""
EVICTION = 60.0
"""Another adapter must be evicted and later reloaded."""
WAIT_FOR_SLOT = 400.0
"""Every slot is in use, so a request must finish before the load can begin."""
UNHEALTHY = "unhealthy"
"""Reason shown for an engine that is down."""
LEAST_SHARE = 0.1
"""Initial share of requests for an engine that has just come up."""


def share_after(seconds: float, period: float) -> float:
    """Slow start: the share of its usual requests that an engine gets `seconds` after it came up.

    A fresh engine has nothing in flight, so every request would otherwise choose it at once, while its caches
    are cold, its kernels uncompiled, and another failure likely. The share rises linearly from LEAST_SHARE to
    1 over `period` seconds."""
    if period <= 0:
        return 1.0
    return min(1.0, max(LEAST_SHARE, seconds / period))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine, as input to the decision."""

    engine: str
    in_flight: int
    """Requests running or waiting there, over all workers as far as known."""
    slots: int
    max_rank: int
    active: int
    """Distinct adapters in flight there."""
    is_active: bool
    """The requested version is one of them."""
    assigned: int
    """Slots taken."""
    holds: bool
    """The requested version is resident and takes requests."""
    healthy: bool = True
    cordoned: bool = False
    draining: bool = False
    failed_before: bool = False
    """This request already failed there."""
    pinned: int = 0
    """Slots held by other versions that cannot be evicted."""
    hangs: str = ""
    """Set if the engine reports healthy but makes no progress: a description with the time span."""
    suspect: bool = False
    """Versions loaded there fail verification."""
    share: float = 1.0
    """In (0, 1]; below 1 during slow start, see `share_after`."""

    @property
    def load(self) -> float:
        """Requests in flight, scaled up during slow start: one more request counts as 1 / `share`. A starting
        engine is still chosen if it is the only one, or if the others are that much busier."""
        return (self.in_flight + 1) / self.share - 1

    @property
    def shown_load(self) -> str:
        if self.share >= 1:
            return f"{self.in_flight} in flight"
        return f"{self.in_flight} in flight; slow start, at {self.share:.0%} of its share"


@dataclass(frozen=True, slots=True)
class Score:
    engine: str
    cost: float | None
    """Milliseconds; None if filtered out."""
    reason: str
    load: bool = False
    """The version would have to be loaded there first."""


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """The engine to use, whether the version must be loaded there first, and why."""

    engine: str | None
    load: bool
    scores: tuple[Score, ...]


def decide(candidates: Iterable[Candidate], *, rank: int | None) -> PlacementDecision:
    """Filter, score, pick. `rank` is the version's rank, or None for the base model, which every engine
    holds.

    An engine that holds the version beats any engine that would have to load it. Engines on which the request
    already failed are a last resort.
    """
    scores: list[Score] = []
    best: tuple[bool, bool, float, bool, str] | None = None
    for c in candidates:
        holds = c.holds or rank is None
        refusal = _refusal(c, rank, holds=holds)
        if refusal:
            scores.append(Score(c.engine, None, refusal))
            continue
        cost, reason = _cost_of_use(c) if holds else _cost_of_load(c)
        scores.append(Score(c.engine, cost, reason, load=not holds))
        order = (c.failed_before, not holds, cost, not c.is_active, c.engine)
        if best is None or order < best:
            best = order
    if best is None:
        return PlacementDecision(None, load=False, scores=tuple(scores))
    return PlacementDecision(best[4], load=best[1], scores=tuple(scores))


def explained(decision: PlacementDecision) -> PlacementDecision:
    """The decision with comparable scores. If the chosen engine holds the version, the others were not
    considered, however cheap a load there would be."""
    if decision.engine is None or decision.load:
        return decision
    why = f"not considered: {decision.engine} holds the version; otherwise: "
    scores = [
        replace(s, cost=None, reason=f"{why}{s.reason}; {s.cost:.0f} ms")
        if s.load and s.cost is not None
        else s
        for s in decision.scores
    ]
    return replace(decision, scores=tuple(scores))


def _refusal(c: Candidate, rank: int | None, *, holds: bool) -> str:
    if not c.healthy:
        return UNHEALTHY
    if c.hangs:
        return c.hangs
    if c.draining:
        return "draining"
    if rank is not None and rank > c.max_rank:
        return f"rank {rank} exceeds its maximum of {c.max_rank}"
    if c.cordoned and not holds:
        return "cordoned: takes no new adapters"
    if c.suspect and not holds:
        return "suspect: versions loaded there fail verification"
    if not holds and c.slots < 1:
        return "has no slots"
    if not holds and c.pinned >= c.slots:
        return "every slot is pinned"
    return ""


def _cost_of_use(c: Candidate) -> tuple[float, str]:
    """Everything that an engine holds fits its slots, so only its load counts."""
    return PER_REQUEST * c.load, f"holds it; {c.shown_load}"


def _cost_of_load(c: Candidate) -> tuple[float, str]:
    cost = PER_REQUEST * c.load + NEW_ADAPTER * (c.active + 1) / c.slots
    cost += LOAD * (1 + LOAD_STALL * c.in_flight)
    if c.assigned < c.slots:
        return cost, f"load into a free slot; {c.shown_load}"
    cost += EVICTION
    if c.active < c.slots:
        return cost, f"evict the least recently used version and load; {c.shown_load}"
    return cost + WAIT_FOR_SLOT, f"wait for a slot (all in use); {c.shown_load}"
