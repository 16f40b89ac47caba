"""The rules of placement in plain Python, for one process: the simulator, and the store that tests use.

They are those of the Lua scripts in `adapters/store/redis/lua/`, function by function, so that the two can be
read side by side; the property tests run them against each other. What the operations promise is in
`adapters.store.protocol.placement`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from adapters.model import Placement, SlotState
from adapters.store.protocol.loads import NONE, Heard, Loads, together
from adapters.store.protocol.placement import Claim, ClaimResult, Touch

LEAVING_MS = 5000
RENEW_MS = 500
ASKED_MS = 1500

Standing = SlotState | Literal["lapsed"]
"""`lapsed`: a load that ran out of time."""
_LAPSED: Literal["lapsed"] = "lapsed"
_EVICTED_FIRST: dict[Standing | None, int] = {SlotState.LOST: 0, SlotState.LEAVING: 1}
"""In that order."""
_LOADED = (SlotState.RESIDENT, SlotState.LEAVING)


@dataclass(slots=True)
class _Held:
    """One version's placement on an engine."""

    state: SlotState
    owner: str
    until: int
    """ms at which `loading` or `leaving` lapses; 0: never."""


@dataclass(slots=True)
class _Engine:
    """Mutable: what is placed on one engine."""

    held: dict[str, _Held] = field(default_factory=dict)
    recency: dict[str, int] = field(default_factory=dict)
    """Versions in slots → ms of last use."""
    cached: dict[str, int] = field(default_factory=dict)
    """Versions in CPU memory without a slot → ms of last use."""
    leases: dict[tuple[str, str], int] = field(default_factory=dict)
    """(version, worker) → ms at which the lease lapses."""
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """Requests in flight under each lease; without an entry, one."""


@dataclass(slots=True)
class _Elsewhere:
    """Where else a version is."""

    holders: list[str] = field(default_factory=list)
    loaders: list[str] = field(default_factory=list)
    leaving: int = 0
    overruled: list[str] = field(default_factory=list)
    """Engines that are loading it, but are ignored."""

    @property
    def count(self) -> int:
        return len(self.holders) + len(self.loaders) + self.leaving


@dataclass(slots=True)
class _Survey:
    """The versions in an engine's slots that are not pinned there, least recently used first. A pin protects
    a version's last holder."""

    idle: list[str]
    """What can be evicted at once: lost ones first, whatever leases remain from the dead process; then
    leaving ones."""
    willing: list[str]
    """What could be marked `leaving`."""
    leaving: str | None
    unpinned: int


def _oldest_first(uses: dict[str, int]) -> list[str]:
    return sorted(uses, key=lambda version: (uses[version], version))


class PlacementRules:
    """The placement of a whole installation. The methods are those of `PlacementStore`, without fences."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        *,
        pins: Container[str] = (),
        changed: Callable[[str, str, Placement | None], None] = lambda _engine, _version, _placement: None,
    ) -> None:
        """`pins`: the pinned versions; may change. `changed` receives each event: the engine, the version,
        and its placement there, or None if it has none any more."""
        self._clock = clock_ms
        self._pins = pins
        self._changed = changed
        self._engines: dict[str, _Engine] = {}
        self._where: dict[str, list[str]] = {}
        self._reports: dict[str, tuple[int, Loads, Any]] = {}
        """Worker → until when its report holds, and the report."""

    def __repr__(self) -> str:
        return f"<PlacementRules { ({name: len(e.held) for name, e in self._engines.items()}) }>"

    # -- placement.lua

    def _engine(self, name: str) -> _Engine:
        engine = self._engines.get(name)
        if engine is None:
            engine = self._engines[name] = _Engine()
        return engine

    def _standing(self, on: str, version: str) -> tuple[Standing | None, str, int]:
        placed = self._engine(on).held.get(version)
        if placed is None:
            return None, "", 0
        state: Standing = placed.state
        if placed.until <= self._clock():
            if state is SlotState.LOADING:
                state = _LAPSED
            elif state is SlotState.LEAVING:
                state = SlotState.RESIDENT
        return state, placed.owner, placed.until

    def _place(
        self,
        engine: str,
        version: str,
        state: SlotState,
        owner: str = "",
        for_ms: int = 0,
        verified: str = "",
    ) -> None:
        placed = self._engine(engine).held
        if version not in placed:
            self._where.setdefault(version, []).append(engine)
        placed[version] = _Held(state, owner, self._clock() + for_ms if for_ms else 0)
        self._changed(engine, version, Placement(engine, version, state, owner, for_ms, verified))

    def _forget(self, on: str, version: str) -> None:
        engine = self._engine(on)
        if engine.held.pop(version, None) is None:
            return
        engine.recency.pop(version, None)
        engine.cached.pop(version, None)
        for lease in [lease for lease in engine.leases if lease[0] == version]:
            del engine.leases[lease]
            engine.counts.pop(lease, None)
        self._where[version].remove(on)
        if not self._where[version]:
            del self._where[version]
        self._changed(on, version, None)

    def time_left(self, engine: str, version: str) -> int | None:
        """Milliseconds until `loading` or `leaving` lapses; None: it does not."""
        until = self._engine(engine).held[version].until
        return until - self._clock() if until else None

    # -- claim.lua

    def claim(
        self,
        version: str,
        engine: str,
        *,
        slots: int,
        owner: str,
        ttl_ms: int,
        cpu_slots: int = 0,
        ignore: Iterable[str] = (),
        reload: bool = False,
        replica: bool = False,
        max_replicas: int | None = None,
        grace_ms: int = 0,
    ) -> Claim:
        here, _, deadline = self._standing(engine, version)
        activate = here is SlotState.CACHED and not reload
        if here is SlotState.LOADING:
            return Claim(ClaimResult.LOADING, engine)
        other = self._elsewhere(version, engine, set(ignore) - {engine})
        enough = max_replicas is not None and other.count >= max_replicas

        def take(victims: Sequence[str] = ()) -> Claim:
            for name in other.overruled:
                self._forget(name, version)
            unload = self._make_room(engine, version, victims, max(slots, cpu_slots))
            victim = victims[0] if victims else None
            if not activate:
                self._place(engine, version, SlotState.LOADING, owner, ttl_ms)
                return Claim(ClaimResult.CLAIMED, engine, victim, unload)
            self._place(engine, version, SlotState.RESIDENT)
            self._grant_grace(engine, version, grace_ms)
            return Claim(ClaimResult.ACTIVATED, engine, victim, unload)

        # 1. It is already here.
        if reload and (here in _LOADED or (here is SlotState.LOST and not enough)):
            return Claim(ClaimResult.LOADING, other.loaders[0]) if other.loaders else take()
        if here is SlotState.RESIDENT or (
            here is SlotState.LEAVING and deadline - LEAVING_MS + ASKED_MS <= self._clock()
        ):
            if self._engine(engine).held[version].until:
                self._place(engine, version, SlotState.RESIDENT)
            return Claim(ClaimResult.RESIDENT, engine)

        # 2. It is already elsewhere, perhaps on its maximum of engines. Replicas at most double at a time.
        if other.holders and not replica:
            return Claim(ClaimResult.RESIDENT, other.holders[0])
        doubled = not activate and len(other.loaders) >= max(1, len(other.holders))
        if other.loaders and (enough or doubled):
            return Claim(ClaimResult.LOADING, other.loaders[0])
        if enough or here is SlotState.LEAVING:
            return Claim(ClaimResult.FULL, engine)

        # 3. Its own lapsed claim, the slot reserved for it since its process died, or a free slot.
        over = len(self._engine(engine).recency) + 1 - slots
        if here in (_LAPSED, SlotState.LOST) or over <= 0:
            return take()

        # 4. A victim. More than one only if the engine now has fewer slots than before.
        survey = self._survey(engine, set(ignore))
        if len(survey.idle) >= over:
            return take(survey.idle[:over])
        if survey.unpinned < over:
            return Claim(ClaimResult.PINNED, engine)
        self._ask_to_leave(engine, survey, replica=replica)
        return Claim(ClaimResult.FULL, engine)

    def _elsewhere(self, version: str, engine: str, ignored: set[str]) -> _Elsewhere:
        elsewhere = _Elsewhere()
        for name in self._where.get(version, ()):
            if name == engine:
                continue
            state, _, _ = self._standing(name, version)
            if name in ignored:
                if state is SlotState.LOADING:
                    elsewhere.overruled.append(name)
            elif state is SlotState.RESIDENT:
                elsewhere.holders.append(name)
            elif state is SlotState.LOADING:
                elsewhere.loaders.append(name)
            elif state is SlotState.LEAVING:
                elsewhere.leaving += 1
        return elsewhere

    def _survey(self, name: str, ignored: set[str]) -> _Survey:
        engine, now = self._engine(name), self._clock()
        engine.leases = {lease: until for lease, until in engine.leases.items() if until > now}
        used = {version for version, _ in engine.leases}
        unpinned = [
            (version, self._standing(name, version)[0])
            for version in _oldest_first(engine.recency)
            if version not in self._pins or self._elsewhere(version, name, ignored).holders
        ]
        idle = [
            (version, state)
            for version, state in unpinned
            if state is SlotState.LOST or (state is not SlotState.LOADING and version not in used)
        ]
        idle.sort(key=lambda each: _EVICTED_FIRST.get(each[1], 2))
        return _Survey(
            idle=[version for version, _ in idle],
            willing=[version for version, state in unpinned if state is SlotState.RESIDENT],
            leaving=next((version for version, state in unpinned if state is SlotState.LEAVING), None),
            unpinned=len(unpinned),
        )

    def _ask_to_leave(self, engine: str, survey: _Survey, *, replica: bool) -> None:
        if replica:
            return  # it is wanted, but not needed
        if survey.leaving is None:
            if survey.willing:
                self._place(engine, survey.willing[0], SlotState.LEAVING, for_ms=LEAVING_MS)
        elif self._standing(engine, survey.leaving)[2] - self._clock() <= LEAVING_MS - RENEW_MS:
            self._place(engine, survey.leaving, SlotState.LEAVING, for_ms=LEAVING_MS)

    def _make_room(self, name: str, version: str, victims: Sequence[str], capacity: int) -> tuple[str, ...]:
        """Take the slots of the victims, and room for the version in both tiers. Returns what to unload."""
        engine = self._engine(name)
        unload: list[str] = []
        demoted: list[str] = []
        engine.cached.pop(version, None)
        for victim in victims:
            if self._standing(name, victim)[0] in _LOADED:
                engine.cached[victim] = engine.recency.pop(victim)
                demoted.append(victim)
            else:
                self._forget(name, victim)
                unload.append(victim)
        engine.recency[version] = self._clock()
        excess = len(engine.recency) + len(engine.cached) - capacity
        if excess > 0:
            for dropped in _oldest_first(engine.cached)[:excess]:
                self._forget(name, dropped)
                unload.append(dropped)
        for victim in demoted:
            if victim in engine.cached:
                self._place(name, victim, SlotState.CACHED)
        return tuple(unload)

    def _grant_grace(self, engine: str, version: str, grace_ms: int) -> None:
        if grace_ms > 0:
            self._engine(engine).leases[version, ""] = self._clock() + grace_ms

    # -- the other scripts

    def confirm(self, version: str, engine: str, *, owner: str, grace_ms: int, verified: str = "") -> bool:
        state, holder, _ = self._standing(engine, version)
        if state is not SlotState.LOADING or holder != owner:
            return False
        self._place(engine, version, SlotState.RESIDENT, verified=verified)
        self._engine(engine).recency[version] = self._clock()
        self._grant_grace(engine, version, grace_ms)
        return True

    def abandon(self, version: str, engine: str, *, owner: str) -> bool:
        state, holder, _ = self._standing(engine, version)
        if state is not SlotState.LOADING or holder != owner:
            return False
        self._forget(engine, version)
        return True

    def unplace(self, engine: str, version: str | None = None) -> None:
        for each in self._all(engine) if version is None else [version]:
            self._forget(engine, each)

    def mark_lost(self, engine: str, versions: Iterable[str] | None = None) -> None:
        for version in self._all(engine) if versions is None else versions:
            state = self._standing(engine, version)[0]
            if state is SlotState.CACHED:
                self._forget(engine, version)
            elif state not in (None, SlotState.LOST):
                self._place(engine, version, SlotState.LOST)

    def _all(self, engine: str) -> list[str]:
        placed = self._engine(engine)
        return _oldest_first(placed.recency) + _oldest_first(placed.cached)

    def touch(
        self, worker: str, touches: Sequence[Touch], *, ttl_ms: int, loads: Loads = NONE, note: Any = None
    ) -> Heard:
        now = self._clock()
        for use in touches:
            engine, lease = self._engine(use.engine), (use.version, worker)
            last = engine.recency.get(use.version)
            if last is not None:
                engine.recency[use.version] = max(last, now - use.age_ms)
            if last is not None and use.in_flight > 0:
                engine.leases[lease] = now + ttl_ms
                engine.counts[lease] = use.in_flight
            else:
                engine.leases.pop(lease, None)
                engine.counts.pop(lease, None)
        self._reports[worker] = now + ttl_ms, loads, note
        self._reports = {
            each: report
            for each, report in self._reports.items()
            if report[0] > now and (report[1] or report[2] is not None)
        }
        others = {each: report for each, report in self._reports.items() if each != worker}
        notes = {each: its_note for each, (_, _, its_note) in others.items() if its_note is not None}
        return Heard(together(report for _, report, _ in others.values()), notes)

    def recency(self, engine: str) -> dict[str, int]:
        now, placed = self._clock(), self._engine(engine)
        uses = sorted((placed.recency | placed.cached).items(), key=lambda use: (-use[1], use[0]))
        return {version: max(0, now - last) for version, last in uses}

    def leases(self, engine: str) -> dict[str, int]:
        now, placed = self._clock(), self._engine(engine)
        live: dict[str, int] = {}
        for lease, until in placed.leases.items():
            if until > now:
                live[lease[0]] = live.get(lease[0], 0) + placed.counts.get(lease, 1)
        return live
