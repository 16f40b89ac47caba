"""The store's twin in one process: for tests that need no server, and as a model of the Lua scripts.

The placement part follows the scripts line by line, so that the two can be read side by side; the property
tests run them against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from adapters.model import Placement, SlotState, dump
from adapters.store.protocol import Claim, ClaimResult, Fence, Snapshot, Touch, with_time_left
from tests.doubles.memory_documents import MemoryDocuments

LEAVING_MS = 5000
RENEW_MS = 500
ASKED_MS = 1500


@dataclass(slots=True)
class _Held:
    """One version's assignment."""

    state: SlotState
    owner: str
    until: int
    """ms at which `loading` or `leaving` lapses; 0: never."""


@dataclass(slots=True)
class _Engine:
    """What Redis keeps per engine: mutable, changed only between two awaits."""

    held: dict[str, _Held] = field(default_factory=dict)
    recency: dict[str, int] = field(default_factory=dict)
    leases: dict[tuple[str, str], int] = field(default_factory=dict)
    """(version, worker) → ms at which the lease lapses."""
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """Requests in flight under each lease; without an entry, one."""


_GOING = {"lost": 0, "leaving": 1}
"""States of what is evicted before all else, in that order."""


class MemoryStore(MemoryDocuments):
    """`adapters.store.protocol.Store` in memory; several workers of one test share one object.

    `clock`: ms. `away` = True makes every call fail as if the server could not be reached.
    """

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(clock)
        self._engines: dict[str, _Engine] = {}
        self._where: dict[str, list[str]] = {}

    def __repr__(self) -> str:
        return f"<MemoryStore at event {self._seq}{', away' if self.away else ''}>"

    async def snapshot(self) -> Snapshot:
        now = self._now()
        documents = {kind: dict(texts) for kind, texts in self._documents.items()}
        for name, engine in self._engines.items():
            for version, held in engine.held.items():
                if held.until:
                    id_ = f"{name}/{version}"
                    left = with_time_left(documents["placement"][id_], held.until - now)
                    documents["placement"][id_] = left
        return Snapshot(self._position, documents)

    # -- placement: placement.lua ---------------------------------------------------------------------

    def _engine(self, name: str) -> _Engine:
        return self._engines.setdefault(name, _Engine())

    def _standing(self, on: str, version: str) -> tuple[SlotState | str | None, str, int]:
        held = self._engine(on).held.get(version)
        if held is None:
            return None, "", 0
        state: SlotState | str = held.state
        if held.until <= self._clock():
            state = {SlotState.LOADING: "lapsed", SlotState.LEAVING: SlotState.RESIDENT}.get(
                held.state, state
            )
        return state, held.owner, held.until

    def _place(self, engine: str, version: str, state: SlotState, owner: str, for_ms: int) -> None:
        held = self._engine(engine).held
        if version not in held:
            self._where.setdefault(version, []).append(engine)
        held[version] = _Held(state, owner, self._clock() + for_ms if for_ms else 0)
        placement = Placement(engine, version, state, owner, for_ms)
        self._emit("placement", placement.id, dump(placement))

    def _forget(self, on: str, version: str) -> None:
        engine = self._engine(on)
        if engine.held.pop(version, None) is None:
            return
        del engine.recency[version]
        engine.leases = {lease: until for lease, until in engine.leases.items() if lease[0] != version}
        self._where[version].remove(on)
        self._emit("placement", f"{on}/{version}", None)

    # -- placement: claim.lua -------------------------------------------------------------------------

    async def claim(
        self,
        version: str,
        engine: str,
        *,
        slots: int,
        owner: str,
        ttl_ms: int,
        ignore: Iterable[str] = (),
        reload: bool = False,
    ) -> Claim:
        now = self._now()
        ignored = set(ignore) - {engine}
        here, _, deadline = self._standing(engine, version)
        if here == "loading":
            return Claim(ClaimResult.LOADING, engine)
        holder, loader, overruled = self._elsewhere(version, engine, ignored)

        def take(victim: str | None = None) -> Claim:
            for name in overruled:
                self._forget(name, version)
            self._place(engine, version, SlotState.LOADING, owner, ttl_ms)
            self._engine(engine).recency[version] = now
            return Claim(ClaimResult.CLAIMED, engine, victim)

        # 1. It is here already.
        if reload and here in ("resident", "leaving", "lost"):
            return Claim(ClaimResult.LOADING, loader) if loader else take()
        if here == "resident" or (here == "leaving" and deadline - LEAVING_MS + ASKED_MS <= now):
            if self._engine(engine).held[version].until:
                self._place(engine, version, SlotState.RESIDENT, "", 0)
            return Claim(ClaimResult.RESIDENT, engine)

        # 2. It is elsewhere already.
        if holder:
            return Claim(ClaimResult.RESIDENT, holder)
        if loader:
            return Claim(ClaimResult.LOADING, loader)
        if here == "leaving":
            return Claim(ClaimResult.FULL, engine)

        # 3. A lapsed claim of it, the slot kept for it since its process went, or a free slot.
        over = len(self._engine(engine).held) + 1 - slots
        if here in ("lapsed", "lost") or over <= 0:
            return take()

        # 4. A victim. More than one only where the engine has fewer slots than it used to.
        idle, willing, leaving, unpinned = self._survey(engine)
        if len(idle) >= over:
            for victim in idle[:over]:
                self._forget(engine, victim)
            return take(idle[0])
        if unpinned < over:
            return Claim(ClaimResult.PINNED, engine)
        self._ask_to_leave(engine, willing, leaving)
        return Claim(ClaimResult.FULL, engine)

    def _elsewhere(
        self, version: str, engine: str, ignored: set[str]
    ) -> tuple[str | None, str | None, list[str]]:
        holder = loader = None
        overruled = []
        for name in self._where.get(version, ()):
            if name == engine:
                continue
            state, _, _ = self._standing(name, version)
            if name in ignored:
                if state == "loading":
                    overruled.append(name)
            elif state == "resident":
                holder = holder or name
            elif state == "loading":
                loader = loader or name
        return holder, loader, overruled

    def _survey(self, name: str) -> tuple[list[str], list[str], str | None, int]:
        engine = self._engine(name)
        now = self._clock()
        engine.leases = {lease: until for lease, until in engine.leases.items() if until > now}
        used = {version for version, _ in engine.leases}
        unpinned = [
            (version, self._standing(name, version)[0])
            for version in sorted(engine.recency, key=lambda v: (engine.recency[v], v))
            if version not in self._documents["pin"]
        ]
        may_go = [
            (v, state) for v, state in unpinned if state == "lost" or (state != "loading" and v not in used)
        ]
        leaving = [v for v, state in unpinned if state == "leaving"]
        return (
            [v for v, _ in sorted(may_go, key=lambda entry: _GOING.get(entry[1] or "", len(_GOING)))],
            [v for v, state in unpinned if state == "resident"],
            leaving[0] if leaving else None,
            len(unpinned),
        )

    def _ask_to_leave(self, engine: str, willing: list[str], leaving: str | None) -> None:
        if leaving is None:
            if willing:
                self._place(engine, willing[0], SlotState.LEAVING, "", LEAVING_MS)
        elif self._engine(engine).held[leaving].until - self._clock() <= LEAVING_MS - RENEW_MS:
            self._place(engine, leaving, SlotState.LEAVING, "", LEAVING_MS)

    # -- placement: the other scripts -----------------------------------------------------------------

    async def confirm(self, version: str, engine: str, *, owner: str, grace_ms: int) -> bool:
        now = self._now()
        state, holder, _ = self._standing(engine, version)
        if state != "loading" or holder != owner:
            return False
        self._place(engine, version, SlotState.RESIDENT, "", 0)
        self._engine(engine).recency[version] = now
        if grace_ms > 0:
            self._engine(engine).leases[version, ""] = now + grace_ms
        return True

    async def abandon(self, version: str, engine: str, *, owner: str) -> bool:
        self._now()
        state, holder, _ = self._standing(engine, version)
        if state != "loading" or holder != owner:
            return False
        self._forget(engine, version)
        return True

    async def unplace(self, engine: str, version: str | None = None, *, fence: Fence | None = None) -> None:
        self._now()
        self._check(fence)
        recency = self._engine(engine).recency
        versions = sorted(recency, key=lambda v: (recency[v], v)) if version is None else [version]
        for each in versions:
            self._forget(engine, each)

    async def mark_lost(
        self, engine: str, versions: Iterable[str] | None = None, *, fence: Fence | None = None
    ) -> None:
        self._now()
        self._check(fence)
        recency = self._engine(engine).recency
        if versions is None:
            versions = sorted(recency, key=lambda v: (recency[v], v))
        for version in versions:
            if self._standing(engine, version)[0] not in (None, "lost"):
                self._place(engine, version, SlotState.LOST, "", 0)

    async def touch(self, worker: str, touches: Sequence[Touch], *, ttl_ms: int) -> None:
        now = self._now()
        for use in touches:
            engine = self._engine(use.engine)
            last = engine.recency.get(use.version)
            if last is not None:
                engine.recency[use.version] = max(last, now - use.age_ms)
            if last is not None and use.in_flight > 0:
                engine.leases[use.version, worker] = now + ttl_ms
                engine.counts[use.version, worker] = use.in_flight
            else:
                engine.leases.pop((use.version, worker), None)

    async def recency(self, engine: str) -> dict[str, int]:
        now = self._now()
        recency = self._engine(engine).recency
        return {v: max(0, now - recency[v]) for v in sorted(recency, key=lambda v: (-recency[v], v))}

    async def leases(self, engine: str) -> dict[str, int]:
        now = self._now()
        live: dict[str, int] = {}
        counts = self._engine(engine).counts
        for lease, until in self._engine(engine).leases.items():
            if until > now:
                live[lease[0]] = live.get(lease[0], 0) + counts.get(lease, 1)
        return live
