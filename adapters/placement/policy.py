"""Where a version should be: pure functions over frozen data.

The costs are milliseconds of expected delay, measured on vLLM 0.8.5 with Llama-3.1-8B on one H100; a newer
engine is faster, but what the choice needs is only how the terms compare. The dominant one is opening
another adapter on an engine: with more distinct adapters in flight than slots, everything there stalls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

PER_REQUEST = 18.0
"""Each request that already runs or waits there."""
NEW_ADAPTER = 480.0
"""One more distinct adapter in flight, times the share of the engine's slots then in use."""
LOAD = 70.0
"""Disk to memory, rank 8; it stalls every request of the engine, hence the factor below."""
LOAD_STALL = 0.35
"""Of a load's time, for each request in flight."""
EVICTION = 60.0
"""Somebody else's adapter must go, and will have to be loaded again."""
WAIT_FOR_SLOT = 400.0
"""Every slot is in use: a request must end before the load can begin."""
UNHEALTHY = "unhealthy"
"""Why an engine that is down is passed over."""
LEAST_SHARE = 0.1
"""Of its usual requests, what an engine gets that has just come up."""


def share_after(seconds: float, period: float) -> float:
    """Slow start: which share of its usual requests an engine gets that came up so many seconds ago.

    With nothing in flight it would otherwise be everybody's choice at once, with cold caches, before it has
    compiled anything, and although it may be about to fail again. The share rises evenly over `period`
    seconds, from LEAST_SHARE to 1."""
    if period <= 0:
        return 1.0
    return min(1.0, max(LEAST_SHARE, seconds / period))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine as the decision sees it."""

    engine: str
    in_flight: int
    """Requests running or waiting there, from all workers, as far as known."""
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
    """This request has already failed there."""
    pinned: int = 0
    """Slots taken by other versions that must stay."""
    hangs: str = ""
    """It says that it is healthy, but does no work: in words, since when and until when."""
    suspect: bool = False
    """What is loaded there answers wrongly."""
    share: float = 1.0
    """Above 0; below 1 while it starts slowly: see `share_after`."""

    @property
    def load(self) -> float:
        """Requests in flight, as many as they would be if it had started long ago. One more counts at
        1 / `share`: so an engine that starts slowly is still the choice when it is the only one, or when the
        others have that much more to do."""
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
    """Milliseconds; None when filtered out."""
    reason: str
    load: bool = False
    """It would have to be loaded there first."""


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """The engine to use, whether the version must be loaded there first, and why."""

    engine: str | None
    load: bool
    scores: tuple[Score, ...]


def decide(candidates: Iterable[Candidate], *, rank: int | None) -> PlacementDecision:
    """Filter, score, pick. `rank` is the version's, or None for the base model, which every engine holds.

    An engine that holds the version beats every one that would have to load it. Engines on which the
    request has failed before are used only when nothing else is left.
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
    """The decision with scores that can be compared: where an engine that holds the version is chosen, the
    others are passed over, however little a load would cost there."""
    if decision.engine is None or decision.load:
        return decision
    why = f"not considered, because {decision.engine} holds it: it would "
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
        return f"rank {rank} is over its maximum of {c.max_rank}"
    if c.cordoned and not holds:
        return "cordoned: takes no new adapters"
    if c.suspect and not holds:
        return "suspect: what is loaded there answers wrongly"
    if not holds and c.slots < 1:
        return "has no slots"
    if not holds and c.pinned >= c.slots:
        return "every slot is pinned"
    return ""


def _cost_of_use(c: Candidate) -> tuple[float, str]:
    """All that an engine holds fits its slots, so only its load counts."""
    return PER_REQUEST * c.load, f"holds it; {c.shown_load}"


def _cost_of_load(c: Candidate) -> tuple[float, str]:
    cost = PER_REQUEST * c.load + NEW_ADAPTER * (c.active + 1) / c.slots
    cost += LOAD * (1 + LOAD_STALL * c.in_flight)
    if c.assigned < c.slots:
        return cost, f"load into a free slot; {c.shown_load}"
    cost += EVICTION
    if c.active < c.slots:
        return cost, f"load in place of the least recently used; {c.shown_load}"
    return cost + WAIT_FOR_SLOT, f"wait for a slot, for every one is in use; {c.shown_load}"
