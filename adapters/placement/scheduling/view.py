"""What a worker knows of the engines when it schedules a request.

`Leases` (or the simulator) reports requests as they are sent, start to answer, and end; `Residency` keeps
`held`; the exchange between workers brings the others' requests. Terms that are the same for
every request are computed at these changes, not at each decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter, methodcaller

from adapters.model import Release, SlotState, Version, has_labels
from adapters.placement.mirror import Mirror
from adapters.placement.residency import Held
from adapters.placement.scheduling.costs import STALL, EngineCosts
from adapters.placement.scheduling.homes import Homes
from adapters.placement.scheduling.prefix_cache import PrefixCache, Seen
from adapters.placement.scheduling.ranking import Ranking

PROMPT_LINE = 200.0
"""Milliseconds of prompts in an engine's queue from which on requests that yield wait outside it."""
DOUBT = 2_000.0
"""Milliseconds charged for an engine that may hang: another holder is better unless it is that busy."""


class Action(StrEnum):
    SERVE = "serve"
    """The engine holds the version."""
    ACTIVATE = "activate"
    """Its weights are in the engine's CPU memory; claim a GPU slot."""
    LOAD = "load"
    """Load it from disk."""
    JOIN = "join"
    """Wait for a load that is in progress there."""


@dataclass(slots=True)
class Ask:
    """What a request asks of the fleet. Not to be changed; freezing it would take longer than the decision's
    arithmetic."""

    version: str
    """The version's name on engines; empty: the base model, which all hold but merged engines."""
    rank: int = 0
    prompt_tokens: int = 0
    """Estimated."""
    seen: Mapping[str, Seen] = field(default_factory=dict)
    """What engines have seen of the prompt before, so that their prefix caches may hold it."""
    excluded: Collection[str] = ()
    """Engines on which it already failed, or which it should leave alone: the last resort."""
    no_room_on: Collection[str] = ()
    """Engines that had no slot for the version a moment ago."""
    requires: Mapping[str, str] = field(default_factory=dict)
    """Labels that the engine must have."""
    max_replicas: int | None = None
    even_full: bool = False
    """Whether engines without room for a request count: only a load is wanted."""
    yields: bool = False
    """Whether it leaves the engines' last places to others: its tenant has far more than its share."""
    document: Version | None = None
    """The version itself; None for the base model."""
    fills: bool = False
    """Whether it only fills what is idle: a line of a batch."""
    lot: float = 1.0
    """Drawn from [0, 1), of which each engine on trial has a share; 1: it is in no trial."""


@dataclass(slots=True, eq=False)
class EngineView:
    """One engine. Mutable; call the methods, which keep the computed terms up to date."""

    name: str
    slots: int
    cpu_slots: int
    max_rank: int
    costs: EngineCosts = field(default_factory=EngineCosts)
    prefixes: PrefixCache = field(default_factory=PrefixCache)
    held: Held = field(default_factory=Held)
    """Versions placed here. Live: whoever keeps the residency changes it."""
    only: Collection[str] | None = None
    """Ids of the only versions that it can hold; None: it can load any."""
    release: Release = (0, 0)
    """Its release of vLLM; (0, 0) if it is unknown, or another kind of engine."""
    serves: str = ""
    """Id of the version that is merged into its weights, which is all that it serves; empty: none is."""
    labels: Mapping[str, str] = field(default_factory=dict)
    mirror: Mirror | None = None
    """What its memory holds, as far as this worker can know."""
    removes: bool = False
    """Whether an unload frees an adapter's place in its memory."""
    in_flight: int = 0
    """This worker's requests here."""
    others_in_flight: int = 0
    """Everyone else's, as last heard."""
    waiting: int = 0
    """This worker's requests that are about to be sent here: most of them wait for a load or a slot."""
    pending: int = 0
    """Prompt tokens of this worker's requests whose answers have not started."""
    others_pending: int = 0
    uses: dict[str, int] = field(default_factory=dict)
    """Versions with requests of this worker in flight here → how many."""
    others_active: int = 0
    """Distinct adapters that others have in flight here."""
    share: float = 1.0
    """In (0, 1]; below 1 while the engine starts slowly."""
    blocked: str = ""
    """Why it takes no requests; empty: it does."""
    limit: float = math.inf
    """How many requests this worker may have here, so that the engine's own queue stays short."""
    last_places: float = math.inf
    """Requests here, over all workers, from which on the places left are for requests that do not yield."""
    yielding: float = 0.0
    """Requests here of tenants that yield, over all workers as far as known."""
    filled: float = math.inf
    """As `last_places`, for requests that do not only fill what is idle."""
    closed: str = ""
    """Why nothing can be loaded here; empty: something can."""
    doubtful: bool = False
    """It may hang, and is being probed."""
    pinned: int = 0
    """Slots whose versions cannot be evicted."""
    base: float = 0.0
    """Computed: what a request waits for those already here."""
    opening: float = 0.0
    """Computed: what one more distinct adapter costs here."""
    stall: float = 1.0
    """Computed: factor on loads for the requests that they stop."""
    place: int = 0
    """In its fleet's order."""
    changes: set[int] = field(default_factory=set)
    """Its fleet's: the places of views that have changed since the fleet last ranked them."""

    def __post_init__(self) -> None:
        self.refresh()

    def __repr__(self) -> str:
        return f"<EngineView {self.name} {self.load} in flight, {self.active}/{self.slots} active>"

    @property
    def load(self) -> int:
        """Requests here, over all workers as far as known."""
        return self.in_flight + self.others_in_flight + self.waiting

    @property
    def full(self) -> bool:
        """Whether this worker may send no more requests here for now."""
        return self.in_flight + self.waiting >= self.limit

    def full_for(self, *, yields: bool, fills: bool = False) -> bool:
        """Whether there is no place here for a request. `yields` and `fills`: see `Ask`."""
        return (
            self.full
            or (yields and (self.load >= self.last_places or self.line >= PROMPT_LINE))
            or (fills and self.load >= self.filled)
        )

    @property
    def line(self) -> float:
        """Milliseconds that the prompts take whose answers have not started, over all workers."""
        return self.costs.per_prompt_token * (self.pending + self.others_pending)

    def refuses(self, ask: Ask) -> bool:
        """Whether there is no place here for this request, and it wants one."""
        return not ask.even_full and self.full_for(yields=ask.yields, fills=ask.fills)

    def cached_tokens(self, ask: Ask) -> float:
        """Tokens of the prompt that its prefix cache is expected to hold."""
        seen = ask.seen.get(self.name)
        return 0.0 if seen is None else ask.prompt_tokens * self.prefixes.expected(seen)

    @property
    def active(self) -> int:
        """Distinct adapters in flight, over all workers as far as known."""
        return min(max(self.slots, len(self.uses)), len(self.uses) + self.others_active)

    def sent(self, version: str, prompt_tokens: int) -> None:
        """A request was sent here."""
        self.in_flight += 1
        self.pending += prompt_tokens
        if version:
            before = self.uses.get(version, 0)
            if not before and self.mirror is not None:
                self.mirror.dispatched(version, self.uses)
            self.uses[version] = before + 1
        self.refresh()

    def answering(self, prompt_tokens: int) -> None:
        """Its first token arrived, or it ended without one."""
        self.pending -= prompt_tokens
        self.refresh()

    def ended(self, version: str, prompt_tokens: int = 0) -> None:
        """A request has left. `prompt_tokens`: its own, if its answer had not started."""
        self.in_flight -= 1
        self.pending -= prompt_tokens
        if version:
            left = self.uses[version] - 1
            if left:
                self.uses[version] = left
            else:
                del self.uses[version]
                if self.mirror is not None:
                    self.mirror.finished(version)
        self.refresh()

    def changed(self, version: str, before: SlotState | None, after: SlotState | None) -> None:
        """A placement here changes, which tells the mirror what the engine did."""
        self.changes.add(self.place)
        mirror = self.mirror
        if mirror is None:
            return
        if after is None:
            mirror.unloaded(version, self.uses, removes=self.removes)
        elif after is SlotState.LOST:
            mirror.restarted()
        elif after is SlotState.RESIDENT and before is SlotState.LOADING:
            mirror.loaded(version, self.uses)
        elif after is SlotState.RESIDENT and before is SlotState.CACHED:
            mirror.dispatched(version, self.uses)  # some worker's request will be

    def evicted(self, version: str) -> bool:
        """Whether the engine's memory has lost a version that the placement says is cached there."""
        return self.mirror is not None and self.mirror.evicted(version)

    def wait(self, requests: int = 1) -> None:
        """So many requests begin to wait for a load or a slot here; if negative, they stop."""
        self.waiting += requests
        self.refresh()

    def heard(self, in_flight: int, pending: int, active: int) -> None:
        """What other workers have in flight here."""
        self.others_in_flight, self.others_pending, self.others_active = in_flight, pending, active
        self.refresh()

    def refresh(self) -> None:
        """Compute the terms that do not depend on the request."""
        costs = self.costs
        load: float = self.in_flight + self.others_in_flight + self.waiting
        self.stall = 1 + STALL * load
        if self.share < 1:
            load = (load + 1) / self.share - 1
        self.base = costs.per_request * load + costs.per_prompt_token * (self.pending + self.others_pending)
        if self.doubtful:
            self.base += DOUBT
        slots, uses = self.slots, len(self.uses)
        active = min(max(slots, uses), uses + self.others_active)  # as the property has it, inlined
        self.opening = costs.distinct * (active + 1) / (slots or 1)
        if active >= slots:
            self.opening += costs.wait_for_slot
        self.changes.add(self.place)

    def load_cost(self, rank: int) -> float:
        """Milliseconds that a request waits if its version, of this rank, must be loaded here."""
        loads = self.stall + self.held.loading  # one load after the other
        cost = self.base + self.opening + self.costs.load(rank) * loads
        return cost + self.costs.evict if len(self.held) >= self.cpu_slots else cost

    def state(self, version: str, now: float) -> SlotState | None:
        slot = self.held.get(version)
        return slot.state(now) if slot is not None else None

    def meets(self, requires: Mapping[str, str]) -> bool:
        """Whether it has all of these labels, and is not dedicated to another tenant."""
        return has_labels(self.labels, requires)

    def holds(self, version: str, now: float) -> bool:
        return not version or self.state(version, now) is SlotState.RESIDENT


def _no_check(_view: EngineView) -> None:
    """The views are up to date."""


_MOST_RANKS = 8
"""Ranks of adapters by whose loads a fleet keeps its engines in order."""
_base = attrgetter("base")


@dataclass(slots=True, eq=False)
class Fleet:
    """The engines of one base model, as one worker knows them."""

    engines: dict[str, EngineView]
    placed: Callable[[str], Iterable[str]]
    """Names of the engines on which a version is placed, in whatever state."""
    check: Callable[[EngineView], None] = _no_check
    """Updates `blocked` and `closed` of an engine that is about to be chosen."""
    trials: dict[str, float] = field(default_factory=dict)
    """Engines on trial, and the share of requests that each gets, in (0, 1)."""
    _by_base: Ranking[EngineView] | None = None
    _by_load: dict[int, Ranking[EngineView]] = field(default_factory=dict)
    _homes: Homes | None = None
    _changes: set[int] = field(default_factory=set)

    @property
    def homes(self) -> Homes:
        """Which engines versions prefer."""
        if self._homes is None or len(self._homes) != len(self.engines):
            self._homes = Homes(self.engines)
        return self._homes

    def by_base(self) -> Ranking[EngineView]:
        """The engines by what a request waits for those already there."""
        if self._by_base is None or len(self._by_base) != len(self.engines):
            self._rank()
        assert self._by_base is not None
        self._reorder()
        return self._by_base

    def by_load(self, rank: int) -> Ranking[EngineView]:
        """The engines by what a request waits there for a load of this rank."""
        views = self.by_base().items
        ranking = self._by_load.get(rank)
        if ranking is None:
            if len(self._by_load) >= _MOST_RANKS:
                self._by_load.clear()
            ranking = self._by_load[rank] = Ranking(views, methodcaller("load_cost", rank))
        return ranking

    def _rank(self) -> None:
        """Once, unless engines have come or gone."""
        views = [*self.engines.values()]
        self._by_base, self._by_load, self._changes = Ranking(views, _base), {}, set()
        for place, view in enumerate(views):
            view.place, view.changes = place, self._changes

    def _reorder(self) -> None:
        """Tell the rankings of changes only when they are asked: most requests need none."""
        assert self._by_base is not None
        if self._changes:
            for ranking in (self._by_base, *self._by_load.values()):
                for place in self._changes:
                    ranking.fell(place)
            self._changes.clear()

    def holding(self, version: str) -> list[EngineView]:
        """The engines on which the version is placed, in whatever state."""
        return [view for name in self.placed(version) if (view := self.engines.get(name)) is not None]


@dataclass(frozen=True, slots=True)
class Score:
    """One engine, as the policy sees it for one request."""

    engine: str
    cost: float | None
    """Lower is better; milliseconds under the policy `cost`. None: filtered out."""
    action: Action
    reason: str
    terms: tuple[tuple[str, float], ...] = ()
    """What the cost consists of."""


@dataclass(slots=True)
class Pick:
    """The engine for a request. Not to be changed, like `Ask`."""

    engine: str
    action: Action
    cost: float
    considered: tuple[tuple[str, Action, float], ...] = ()
    """The engines whose cost was computed: the name, what it takes, the cost. All others of the fleet were
    filtered out, or could not have been cheaper."""
    fleet: int = 0
    """Engines in the fleet."""
    cached: int = 0
    """Prompt tokens that the engine's prefix cache is expected to hold."""
    on_trial: bool = False
    """The request's lot fell to this engine, which is on trial."""
